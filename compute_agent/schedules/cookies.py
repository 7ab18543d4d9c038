"""The wanted cookies of guests, as a pure function of the present ones and of notes.

The cookie of a group is that of the main thread of its first guest with a note and a cookie. All threads of
the group get it. A group without a cookie gets a new one first. A guest that comes from another group brings
no cookie along.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.schedules.run_notes import RunNote, RunNotes, note_of


@dataclass(frozen=True, slots=True)
class CookieGuest:
    """A guest with the cookies of its threads by thread id; 0 is none.

    :ivar group: the group that it should share a cookie with; empty: it should have none.
    :ivar preserved: it keeps what it has.
    """

    uuid: str
    main: ProcessIdentity
    group: str = ""
    cookies: Mapping[int, int] = field(default_factory=dict)
    preserved: bool = False

    @property
    def main_cookie(self) -> int:
        """The cookie of its main thread."""
        return self.cookies.get(self.main.pid, 0)


@dataclass(frozen=True, slots=True)
class CookieGrant:
    """Threads of a guest that get the cookie of a process; without a process they lose theirs."""

    guest: CookieGuest
    source: ProcessIdentity | None
    threads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CookiePlan:
    """Notes to be kept first, then guests that get a new cookie, and grants.

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
        elif note is not None and not guest.group and has - {0}:
            kept[guest.uuid] = note
            grants.append(_grant_to(guest, None, 0))
        elif guest.group and note is None and has and all(users[cookie] == 1 for cookie in has):
            # No other guest has its cookies, and all its threads have one: it is apart from all already.
            foreign.add(guest.uuid)
        elif guest.group:
            if note is None or note.group != guest.group:
                note = RunNote(guest.main, guest.main_cookie, guest.group)
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


def _grant_to(guest: CookieGuest, source: ProcessIdentity | None, cookie: int) -> CookieGrant:
    return CookieGrant(guest, source, tuple(tid for tid, has in guest.cookies.items() if has != cookie))
