"""The wanted cookies of guests, as a pure function of the present ones and of notes.

The cookie of a group is that of the main thread of its first guest with a note and a cookie. All threads of
the group get it. A group without a cookie gets a new one first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compute_agent.drivers.procfs import ProcessIdentity


@dataclass(frozen=True, slots=True)
class CookieNote:
    """A run of a guest that has a cookie from the agent, or is about to get it.

    :ivar main: its main process.
    :ivar before: the cookie that this had before.
    """

    main: ProcessIdentity
    before: int = 0


CookieNotes = Mapping[str, CookieNote]
"""Notes by the uuid of the guest."""


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
    source: int
    threads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CookiePlan:
    """Notes to be kept first, then guests that get a new cookie, and grants.

    :ivar foreign: guests that have cookies of another program.
    """

    notes: CookieNotes
    created: tuple[CookieGuest, ...] = ()
    grants: tuple[CookieGrant, ...] = ()
    foreign: frozenset[str] = frozenset()


def decide_cookies(guests: Iterable[CookieGuest], notes: CookieNotes) -> CookiePlan:
    """The plan for all guests of a host. Notes of guests that have ended are dropped."""
    guests = sorted(guests, key=lambda guest: guest.uuid)
    users = Counter(cookie for guest in guests for cookie in set(guest.cookies.values()) if cookie)
    known = {guest.uuid: note for guest in guests if (note := _note_of(guest, notes)) is not None}
    kept, created, grants, foreign = {}, [], [], set()
    groups: defaultdict[str, list[CookieGuest]] = defaultdict(list)
    for guest in guests:
        note = known.get(guest.uuid)
        own = {cookie for cookie in guest.cookies.values() if cookie}
        if guest.preserved:
            if note is not None:
                kept[guest.uuid] = note
        elif note is not None and not guest.group and own:
            kept[guest.uuid] = note
            grants.append(_grant_to(guest, 0, 0))
        elif guest.group and own and note is None and all(users[cookie] == 1 for cookie in own):
            # No other guest has its cookies, so that it is apart from all already.
            foreign.add(guest.uuid)
        elif guest.group:
            kept[guest.uuid] = CookieNote(guest.main, guest.main_cookie) if note is None else note
            groups[guest.group].append(guest)
    taken: set[int] = set()
    for _, members in sorted(groups.items()):
        cookies = [
            guest
            for guest in members
            if guest.uuid in known and guest.main_cookie not in taken | {0, known[guest.uuid].before}
        ]
        if not cookies:
            created.append(members[0])
            continue
        first = cookies[0]
        taken.add(first.main_cookie)
        given = (_grant_to(guest, first.main.pid, first.main_cookie) for guest in members)
        grants += [grant for grant in given if grant.threads]
    return CookiePlan(kept, tuple(created), tuple(grants), frozenset(foreign))


def _note_of(guest: CookieGuest, notes: CookieNotes) -> CookieNote | None:
    """The note of this run of a guest."""
    note = notes.get(guest.uuid)
    return note if note is not None and note.main == guest.main else None


def _grant_to(guest: CookieGuest, source: int, cookie: int) -> CookieGrant:
    return CookieGrant(guest, source, tuple(tid for tid, has in guest.cookies.items() if has != cookie))
