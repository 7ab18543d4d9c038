"""Controller ``core_scheduling``: guests of different groups never run on one core at the same time.

:mod:`compute_agent.schedules` decides and gives cookies; here guests become its groups, and its answers
sentences. All guests are looked at together in sync(), since some share a cookie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from compute_agent.controllers.base import (
    GuestTarget,
    KernelController,
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
from compute_agent.schedules.cookies import CookieGuest, CookieNotes, CookiePlan, decide_cookies
from compute_agent.schedules.kernel_cookies import CookieError, KernelCookies, NoSiblingsError

LOG = logging.getLogger(__name__)

OPTION: Final = "core_scheduling"
_ROUNDS: Final = 4
"""A new cookie, its grant to other guests of the group and to threads made meanwhile, and a last look."""


class CookieNoteStore(Protocol):
    """Keeps notes of guests with a cookie."""

    @property
    def kept_notes(self) -> CookieNotes:
        """The notes.

        :raises OSError: they cannot be read.
        """
        ...

    def keep_notes(self, notes: CookieNotes) -> None:
        """Replace the notes; durable when this returns.

        :raises OSError: the former notes are still stored.
        """
        ...


class CoreCookieController(KernelController):
    """Gives each group of guests a cookie."""

    name = OPTION
    acts_early = False

    def __init__(
        self,
        driver: GuestThreads,
        scopes: Mapping[str, CoreScope],
        store: CookieNoteStore,
        cookies: KernelCookies,
        count_drift: Callable[[], object] = lambda: None,
    ) -> None:
        """Give cookies by the scopes of classes.

        :param count_drift: called for each guest with threads that lost their cookie.
        """
        self._driver = driver
        self._scopes = scopes
        self._store = store
        self._cookies = cookies
        self._count_drift = count_drift
        self._has_siblings = True
        #: Main processes of guests in which all threads had their cookie at the last look.
        self._settled: dict[str, int] = {}
        self.refused: Mapping[str, Sequence[str]] = {}

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Give, share and take cookies.

        :raises OSError: notes cannot be kept; nothing is given then.
        """
        self.refused = {}
        groups = self._group_guests(targets)
        if not any(groups.values()) and not self._store.kept_notes:
            return
        try:
            self._bring_about(targets, groups)
        except NoSiblingsError:
            if self._has_siblings:
                LOG.info("No core has two threads online, so that no guests can share one: no cookies")
            self._has_siblings = False
        except CookieError as error:
            self.refused = {uuid: (f"{OPTION}: {error}",) for uuid, group in groups.items() if group}
        else:
            self._has_siblings = True

    def _bring_about(self, targets: Sequence[GuestTarget], groups: Mapping[str, str]) -> None:
        """Give cookies until nothing is left to do.

        :raises OSError: as in sync().
        :raises NoSiblingsError:
        :raises CookieError:
        """
        guests = [target.guest for target in targets]
        for number in range(_ROUNDS):
            plan = self._decide_cookies(guests, groups)
            self._keep_notes(plan.notes, guests)
            if not number:
                self._count_lost(plan)
            if not (plan.created or plan.grants):
                break
            for created in plan.created:
                self._cookies.create_cookie(created.main.pid)
            for grant in plan.grants:
                self._cookies.grant_cookie(grant.source, grant.threads)
        left = {grant.guest.uuid: len(grant.threads) for grant in plan.grants if grant.source}
        self.refused = {uuid: (f"{OPTION}: {number} threads lack it",) for uuid, number in left.items()}
        whole = {uuid: note for uuid, note in plan.notes.items() if groups.get(uuid) and uuid not in left}
        self._settled = {uuid: note.main.pid for uuid, note in whole.items()}

    def _keep_notes(self, notes: CookieNotes, guests: Sequence[Guest]) -> None:
        """Keep notes, also of guests that are not reported now and still run.

        :raises OSError:
        """
        seen = {guest.uuid for guest in guests}
        others = {
            uuid: note
            for uuid, note in self._store.kept_notes.items()
            if uuid not in seen and procfs.is_alive(note.main)
        }
        self._store.keep_notes({**others, **notes})

    def _count_lost(self, plan: CookiePlan) -> None:
        for grant in plan.grants:
            if grant.source and self._settled.get(grant.guest.uuid) == grant.guest.main.pid:
                self._count_drift()

    def describe_drift(self, target: GuestTarget) -> str | None:
        """Return None: sync() has compared all threads, and repaired them."""
        return None

    def apply(self, target: GuestTarget) -> bool:
        """Change nothing: sync() gives cookies to all guests."""
        return False

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The guests that would get or lose a cookie."""
        groups = self._group_guests(targets)
        if not any(groups.values()) and not self._store.kept_notes:
            return
        try:
            plan = self._decide_cookies([target.guest for target in targets], groups)
        except (NoSiblingsError, CookieError):
            return
        created = {one.uuid for one in plan.created}
        for one in plan.created:
            yield PlannedChange(self.name, one.uuid, f"a cookie for {_group_text(one)}")
        for grant in plan.grants:
            if grant.guest.uuid not in created:
                change = f"the cookie of {_group_text(grant.guest)}" if grant.source else "no cookie"
                threads = f"{len(grant.threads)} threads -> {change}"
                yield PlannedChange(self.name, grant.guest.uuid, threads)

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The cookies of the agent, by guest."""
        try:
            plan = self._decide_cookies(guests, {})
        except (OSError, CookieError) as error:
            yield failed_item(OPTION, "host", error)
            return
        except NoSiblingsError:
            return
        for grant in plan.grants:
            detail = f"a core cookie of {len(grant.threads)} threads"
            give_back = partial(self._give_back, grant.guest.uuid, guests)
            yield ReleaseItem(OPTION, grant.guest.uuid, detail, give_back)

    def _give_back(self, uuid: str, guests: Sequence[Guest]) -> None:
        """Take the cookie of a guest.

        :raises DriverError: the kernel refuses it.
        :raises OSError: notes cannot be kept.
        """
        try:
            plan = self._decide_cookies([guest for guest in guests if guest.uuid == uuid], {})
            for grant in plan.grants:
                self._cookies.grant_cookie(0, grant.threads)
        except (NoSiblingsError, CookieError) as error:
            raise DriverError(str(error) or "no core has two threads online") from error
        self._store.keep_notes(
            {other: note for other, note in self._store.kept_notes.items() if other != uuid}
        )

    def _group_guests(self, targets: Sequence[GuestTarget]) -> dict[str, str]:
        """The group of each guest that the agent may change; empty for none."""
        return {target.guest.uuid: self._group_of(target.guest) for target in without_preserved(targets)}

    def _group_of(self, guest: Guest) -> str:
        name = guest.settings.qos_class
        scope = self._scopes.get(name, CoreScope.NONE)
        return {CoreScope.GUEST: f"guest {guest.uuid}", CoreScope.CLASS: f"class {name}"}.get(scope, "")

    def _decide_cookies(self, guests: Sequence[Guest], groups: Mapping[str, str]) -> CookiePlan:
        """The plan for these guests.

        :raises NoSiblingsError:
        :raises CookieError:
        :raises OSError: notes cannot be read.
        """
        found = (self._read_guest(guest, groups.get(guest.uuid, "")) for guest in guests)
        return decide_cookies([one for one in found if one is not None], self._store.kept_notes)

    def _read_guest(self, guest: Guest, group: str) -> CookieGuest | None:
        """A guest with its cookies; None when it has ended."""
        main = procfs.identify_process(guest.pid) if guest.pid else None
        if main is None:
            return None
        if not group and guest.uuid not in self._store.kept_notes:
            return CookieGuest(guest.uuid, main, preserved=guest.settings.preserve)
        try:
            threads = self._driver.thread_ids(guest)
        except GuestGoneError:
            return None
        cookies = {tid: self._cookies.read_cookie(tid) for tid in threads}
        present = {tid: cookie for tid, cookie in cookies.items() if cookie is not None}
        return CookieGuest(guest.uuid, main, group, present, guest.settings.preserve)


def _group_text(guest: CookieGuest) -> str:
    return guest.group if guest.group.startswith("class") else "it alone"
