"""Decides the wanted cookies of guests, as a pure function of present cookies and notes.

If a guest of a group has a note and a cookie, all threads of the group get the cookie of this guest's main
thread. If several guests have a note and a cookie, the first of them decides. If no guest of a group has a
cookie, the agent first creates a cookie. A guest that comes from another group loses its old cookie.

A guest that leaves its group has no cookie afterwards, like most guests. If the guest shared a cookie of
another program before, it gets this cookie back from a guest that still has it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.schedules.run_notes import CookieLender, RunNote, RunNotes, note_of


@dataclass(frozen=True, slots=True)
class CookieGuest:
    """A guest with the cookies of its threads, by thread id; 0 stands for no cookie.

    :ivar group: the group with which the guest should share a cookie; empty if the guest should have no
        cookie.
    :ivar preserved: whether the guest keeps its present cookies.
    """

    uuid: str
    main: ProcessIdentity
    group: str = ""
    cookies: Mapping[int, int] = field(default_factory=dict)
    preserved: bool = False

    @property
    def main_cookie(self) -> int:
        """The cookie of the guest's main thread; 0 for no cookie."""
        return self.cookies.get(self.main.pid, 0)


@dataclass(frozen=True, slots=True)
class CookieGrant:
    """Threads that get the cookie of the process ``source``. If it is None, they lose their cookies."""

    guest: CookieGuest
    source: ProcessIdentity | None
    threads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CookiePlan:
    """The changes of cookies that are planned.

    First the notes are stored, then the guests in ``created`` get new cookies, and then the grants are
    carried out.

    :ivar foreign: guests that have cookies of another program.
    """

    notes: RunNotes
    created: tuple[CookieGuest, ...] = ()
    grants: tuple[CookieGrant, ...] = ()
    foreign: frozenset[str] = frozenset()


def decide_cookies(guests: Iterable[CookieGuest], notes: RunNotes) -> CookiePlan:
    """The plan for all guests of a host. Notes of guests that have ended are dropped."""
    guests = sorted(guests, key=lambda guest: guest.uuid)
    users = Counter(cookie for guest in guests for cookie in set(guest.cookies.values()) if cookie)
    known = {guest.uuid: note for guest in guests if (note := note_of(notes, guest.uuid, guest.main))}
    kept, created, grants, foreign = {}, [], [], set()
    groups: defaultdict[str, list[CookieGuest]] = defaultdict(list)
    for guest in guests:
        note = known.get(guest.uuid)
        has = set(guest.cookies.values())
        if guest.preserved:
            if note is not None:
                kept[guest.uuid] = note
        elif note is not None and not guest.group:
            source = _find_lender(note, guests)
            cookie = 0 if source is None else source.main_cookie
            if has - {cookie}:
                kept[guest.uuid] = note
                grants.append(_grant_to(guest, None if source is None else source.main, cookie))
        elif guest.group and note is None and has and all(users[cookie] == 1 for cookie in has):
            # All threads of the guest have a cookie, and no other guest has these cookies. So these cookies
            # already keep all other guests off the guest's cores.
            foreign.add(guest.uuid)
        elif guest.group:
            if note is None:
                note = RunNote(guest.main, lender=_choose_lender(guest, guests, known.keys()))
            if note.group != guest.group:
                note = replace(note, before=guest.main_cookie, group=guest.group)
            kept[guest.uuid] = note
            groups[guest.group].append(guest)
    taken: set[int] = set()
    for _, members in sorted(groups.items()):
        cookies = [
            guest for guest in members if guest.main_cookie not in taken | {0, kept[guest.uuid].before}
        ]
        if not cookies:
            created.append(members[0])
            continue
        first = cookies[0]
        taken.add(first.main_cookie)
        given = (_grant_to(guest, first.main, first.main_cookie) for guest in members)
        grants += [grant for grant in given if grant.threads]
    return CookiePlan(kept, tuple(created), tuple(grants), frozenset(foreign))


def _choose_lender(
    guest: CookieGuest, guests: Iterable[CookieGuest], noted: Collection[str]
) -> CookieLender | None:
    """Find another guest that has the same cookie, is in no group, and therefore keeps the cookie."""
    cookie = guest.main_cookie
    for other in guests:
        if cookie and other.main_cookie == cookie and not (other.group or other.uuid in noted):
            return CookieLender(other.main, cookie)
    return None


def _find_lender(note: RunNote, guests: Iterable[CookieGuest]) -> CookieGuest | None:
    """Find the guest that can give back the cookie from before a note; None if there is no such guest."""
    lender = note.lender
    for other in guests:
        # The kernel can use the number of a cookie again, but hardly for the same run of the same guest.
        if lender is not None and (other.main, other.main_cookie) == (lender.main, lender.cookie):
            return other
    return None


def _grant_to(guest: CookieGuest, source: ProcessIdentity | None, cookie: int) -> CookieGrant:
    return CookieGrant(guest, source, tuple(tid for tid, has in guest.cookies.items() if has != cookie))
