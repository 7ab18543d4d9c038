"""Controller ``core_scheduling``: keeps guests of different groups from using one core at the same time.

The kernel lets threads run on the two hyperthreads of a core only if they have the same core scheduling
cookie. :mod:`compute_agent.schedules` decides and sets cookies. The controller passes groups of guests to
that package, and turns the results into messages. All guests are handled together in sync(), because guests
of a group share a cookie. A function that reads or sets cookies raises NoSiblingsError if no core has two
threads online, and CookieError if the kernel refuses. A function that reads or writes the notes raises
OSError if their file cannot be read or written.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from compute_agent.controllers.base import (
    FOREIGN_ROUNDS,
    GuestTarget,
    HostController,
    PlannedChange,
    ReleaseItem,
    failed_item,
    without_preserved,
)
from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestThreads
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import CoreScope
from compute_agent.schedules.cookies import (
    CookieError,
    CookieGuest,
    CookiePlan,
    KernelCookies,
    NoSiblingsError,
    OwnCookieError,
    decide_cookies,
)
from compute_agent.schedules.run_notes import RunNotes, RunNotesFile

LOG = logging.getLogger(__name__)

OPTION: Final = "core_scheduling"
FOREIGN: Final = "it keeps a cookie of another program"
_ROUNDS: Final = 4
"""Maximum number of passes in one sync(): to create cookies, to give them to the group, to give them to new
threads, and to check.
"""


class CoreCookieController(HostController):
    """Gives each group of guests a core scheduling cookie."""

    name = OPTION
    compare_rounds = FOREIGN_ROUNDS

    def __init__(
        self,
        driver: GuestThreads,
        scopes: Mapping[str, CoreScope],
        store: RunNotesFile,
        cookies: KernelCookies,
        count_drift: Callable[[], object] = lambda: None,
    ) -> None:
        """Start with the scopes that the classes of guests have.

        :param scopes: for each class, whether each guest of the class has its own cookie, or all guests of
            the class share one cookie.
        :param store: stores on disk which guests have a cookie that the agent set.
        :param cookies: the kernel's interface for cookies.
        :param count_drift: called for each guest with threads that lost their cookie.
        """
        self._driver = driver
        self._scopes = scopes
        self._store = store
        self._cookies = cookies
        self._count_drift = count_drift
        self._has_siblings = True
        self._own_problem = ""
        #: The notes of those guests of which all threads had their cookie at the last sync().
        self._settled: RunNotes = {}

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Create, share and remove cookies.

        If the kernel refuses a cookie for one guest, the other guests still get their cookies.

        :raises OSError: the notes cannot be written, so no cookie is changed.
        """
        self.refused = {}
        groups = self._group_guests(targets)
        if not any(groups.values()) and not self._store.kept_notes:
            return
        try:
            self._clear_own_cookie()
            self._bring_about([target.guest for target in targets], groups)
        except NoSiblingsError:
            if self._has_siblings:
                LOG.info("No core has two online threads, so guests share no core and need no core cookies")
            self._has_siblings = False
        else:
            self._has_siblings = True

    def _clear_own_cookie(self) -> None:
        """Remove the cookie that the agent has inherited from the process that started it."""
        problem = ""
        try:
            self._cookies.clear_own_cookie()
        except OwnCookieError as error:
            problem = str(error)
            if problem != self._own_problem:
                LOG.warning(
                    "The agent cannot clear its own core cookie, which new guests share until they get a"
                    " cookie: %s",
                    problem,
                )
        except CookieError as error:
            LOG.debug("The agent's own core cookie is unknown: %s", error)  # each guest gets the same message
        self._own_problem = problem

    def _bring_about(self, guests: Sequence[Guest], groups: Mapping[str, str]) -> None:
        """Plan and change cookies in a limited number of passes, until no change is left."""
        failed: dict[str, str] = {}
        for number in range(_ROUNDS):
            former = self._store.kept_notes
            plan = self._decide_cookies(guests, groups, failed)
            self._keep_notes(plan.notes, guests, failed)
            _log_changes(former, plan)
            if not number:
                self._count_lost(plan)
            if not (plan.created or plan.grants):
                break
            self._carry_out(plan, failed)
        left = Counter({one.uuid: len(one.cookies) for one in plan.created})
        left.update({grant.guest.uuid: len(grant.threads) for grant in plan.grants})
        self.refused = {
            **dict.fromkeys(plan.foreign, (f"{OPTION}: {FOREIGN}",)),
            **{
                uuid: (f"{OPTION}: {number} threads {'lack it' if groups.get(uuid) else 'keep a cookie'}",)
                for uuid, number in left.items()
            },
            **{uuid: (f"{OPTION}: {reason}",) for uuid, reason in failed.items()},
        }
        self._settled = {
            uuid: note for uuid, note in plan.notes.items() if groups.get(uuid) and uuid not in self.refused
        }

    def _carry_out(self, plan: CookiePlan, failed: dict[str, str]) -> None:
        """Create and remove the cookies of a plan.

        Refusals are noted in ``failed``, by the uuid of the guest.
        """
        for guest in plan.created:
            with _noted_refusal(guest.uuid, failed):
                # The kernel has perhaps given the pid of an ended guest to another process.
                if procfs.is_alive(guest.main):
                    self._cookies.create_cookie(guest.main.pid)
        for grant in plan.grants:
            with _noted_refusal(grant.guest.uuid, failed):
                ends = [grant.guest.main] if grant.source is None else [grant.guest.main, grant.source]
                if all(map(procfs.is_alive, ends)):
                    pid = 0 if grant.source is None else grant.source.pid
                    self._cookies.grant_cookie(pid, grant.threads)

    def _keep_notes(self, notes: RunNotes, guests: Sequence[Guest], failed: Collection[str]) -> None:
        """Write the notes of the plan, and keep the notes of all other running guests.

        Notes of guests with unreadable cookies are kept, too.
        """
        seen = {guest.uuid for guest in guests if guest.uuid not in failed}
        others = {
            uuid: note
            for uuid, note in self._store.kept_notes.items()
            if uuid not in seen and procfs.is_alive(note.main)
        }
        self._store.keep_notes({**others, **notes})

    def _count_lost(self, plan: CookiePlan) -> None:
        for grant in plan.grants:
            # The note of a guest changes with its group, so a guest that moved to another group is no drift.
            uuid = grant.guest.uuid
            if grant.guest.group and self._settled.get(uuid) == plan.notes[uuid]:
                self._count_drift()

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The guests that would get or lose a cookie."""
        groups = self._group_guests(targets)
        if not any(groups.values()) and not self._store.kept_notes:
            return
        try:
            plan = self._decide_cookies([target.guest for target in targets], groups, {})
        except NoSiblingsError:
            return
        created = {one.uuid for one in plan.created}
        for one in plan.created:
            yield PlannedChange(self.name, one.uuid, f"a cookie for {_group_text(one)}")
        for grant in plan.grants:
            if grant.guest.uuid not in created:
                change = f"the cookie of {_group_text(grant.guest)}" if grant.guest.group else "no cookie"
                if grant.source and not grant.guest.group:
                    change = "its former cookie"
                threads = f"{len(grant.threads)} threads -> {change}"
                yield PlannedChange(self.name, grant.guest.uuid, threads)

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The cookies that the agent gave, by guest."""
        failed: dict[str, str] = {}
        try:
            plan = self._decide_cookies(guests, {}, failed)
        except OSError as error:
            yield failed_item(OPTION, "host", error)
            return
        except NoSiblingsError:
            return
        for uuid, reason in failed.items():
            yield failed_item(OPTION, uuid, CookieError(reason))
        for grant in plan.grants:
            detail = f"a core cookie of {len(grant.threads)} threads"
            give_back = partial(self._give_back, grant.guest.uuid, guests)
            yield ReleaseItem(OPTION, grant.guest.uuid, detail, give_back)

    def _give_back(self, uuid: str, guests: Sequence[Guest]) -> None:
        """Remove the cookie of a guest. The guest's note is removed after its last cookie.

        :raises DriverError: the kernel refuses the change, or the guest creates threads faster than the agent
            changes them.
        """
        failed: dict[str, str] = {}
        try:
            for _ in range(_ROUNDS):
                # All guests are read, because another guest perhaps still has the same cookie.
                plan = self._decide_cookies(guests, {}, failed)
                grants = tuple(grant for grant in plan.grants if grant.guest.uuid == uuid)
                if uuid in failed or not grants:
                    break
                self._carry_out(CookiePlan(plan.notes, grants=grants), failed)
        except NoSiblingsError as error:
            raise DriverError("no core has two threads online") from error
        if uuid in failed or grants:
            raise DriverError(failed.get(uuid, "some of its threads keep a cookie"))
        self._store.keep_notes(
            {other: note for other, note in self._store.kept_notes.items() if other != uuid}
        )

    def _group_guests(self, targets: Sequence[GuestTarget]) -> dict[str, str]:
        """The group of each guest that the agent is allowed to change, by uuid of the guest.

        The text of a group is empty if the guest has no core scheduling.
        """
        return {target.guest.uuid: self.group_of(target.guest) for target in without_preserved(targets)}

    def group_of(self, guest: Guest) -> str:
        """The core scheduling group of a guest; empty if it is allowed to share cores with all guests."""
        name = guest.settings.qos_class
        scope = self._scopes.get(name, CoreScope.NONE)
        return {CoreScope.GUEST: f"guest {guest.uuid}", CoreScope.CLASS: f"class {name}"}.get(scope, "")

    def _decide_cookies(
        self, guests: Sequence[Guest], groups: Mapping[str, str], failed: dict[str, str]
    ) -> CookiePlan:
        """Decide on the cookies of these guests.

        Guests in ``failed`` are left out; guests that cannot be read are added to ``failed``.
        """
        notes = self._store.kept_notes
        # If any guest has a group, all guests are read, because a guest of any class can have the same
        # cookie. A guest without a group can still have the cookie that another guest shared with it before.
        needs_all = any(groups.values()) or any(note.lender for note in notes.values())
        found = []
        for guest in guests:
            concerned = bool(groups.get(guest.uuid)) or guest.uuid in notes
            if guest.uuid in failed or not (concerned or needs_all):
                continue
            with _noted_refusal(guest.uuid, failed if concerned else {}):
                found.append(self._read_guest(guest, groups.get(guest.uuid, "")))
        return decide_cookies([one for one in found if one is not None], notes)

    def _read_guest(self, guest: Guest, group: str) -> CookieGuest | None:
        """A guest with the cookies of its threads; None if the guest has ended."""
        main = procfs.identify_process(guest.pid) if guest.pid else None
        if main is None:
            return None
        try:
            threads = self._driver.thread_ids(guest)
        except GuestGoneError:
            return None
        cookies = {tid: self._cookies.read_cookie(tid) for tid in threads}
        present = {tid: cookie for tid, cookie in cookies.items() if cookie is not None}
        return CookieGuest(guest.uuid, main, group, present, guest.settings.preserve)


@contextlib.contextmanager
def _noted_refusal(uuid: str, failed: dict[str, str]) -> Iterator[None]:
    """Record a refusal of the kernel within the context in ``failed``, for the guest with this uuid."""
    try:
        yield
    except CookieError as error:
        failed[uuid] = str(error)


def _log_changes(former: RunNotes, plan: CookiePlan) -> None:
    """Log the guests that get a cookie for a new group, and the guests that lose their cookie."""
    for uuid, note in plan.notes.items():
        if note.group and former.get(uuid) != note:
            LOG.info("Guest %s gets a core cookie for %s", uuid, note.group)
    for grant in plan.grants:
        if not grant.guest.group:
            change = "gets its former core cookie" if grant.source else "loses its core cookie"
            LOG.info("Core scheduling has changed: guest %s %s", grant.guest.uuid, change)


def _group_text(guest: CookieGuest) -> str:
    return guest.group if guest.group.startswith("class") else "it alone"
