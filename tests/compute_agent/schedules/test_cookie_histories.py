"""Tests with random histories of guests, classes, threads, cookies of other programs, and kills of the agent.

After each round of the agent, all threads of a group with a cookie of the agent have the same cookie, and no
two groups have the same cookie. At the end, no cookie of the agent is left.
"""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from compute_agent.controllers.core_cookies import FOREIGN, CoreCookieController
from compute_agent.drivers import procfs
from compute_agent.model.resource import CoreScope
from compute_agent.schedules.run_notes import COOKIES_FILE, RunNotesFile
from tests.compute_agent.schedules.cookie_host import CookieHost, Killed

MEMORY = Path("/dev/shm")
SCOPES = {"G": CoreScope.GUEST, "C": CoreScope.CLASS, "LS": CoreScope.NONE}
LAUNCHER = 1
NAMES, CLASSES = st.sampled_from("abcd"), st.sampled_from(sorted(SCOPES))
EVENTS = st.one_of(
    st.tuples(st.just("start"), NAMES, CLASSES, st.sampled_from([0, 0, LAUNCHER])),
    st.tuples(st.just("end"), NAMES),
    st.tuples(st.just("class"), NAMES, CLASSES),
    st.tuples(st.just("thread"), NAMES),
    st.tuples(st.just("own"), NAMES),
    st.tuples(st.just("join"), NAMES, NAMES, st.sampled_from([min, max])),
    st.tuples(st.just("look")),
    st.tuples(st.just("hidden"), NAMES),
    st.tuples(st.just("kill"), st.integers(0, 4)),
)


class CookieWorld:
    """A host and its agent."""

    def __init__(self, folder):
        self.folder, self.host = folder, CookieHost()
        self.restart()

    def restart(self):
        self.store = RunNotesFile(self.folder / COOKIES_FILE)
        self.agent = CoreCookieController(self.host, SCOPES, self.store, self.host)

    def happen(self, kind, name="", *rest):
        known = self.host.guests.get(name)
        if kind == "start" and known is None:
            self.host.start(name, *rest)
        elif kind == "look":
            self.look()
        elif kind == "hidden":
            # A driver that has just started does not report all guests.
            self.agent.sync([one for one in self.host.targets() if one.guest.uuid != name], ())
        elif kind == "kill":
            self.host.writes, self.host.kill_at = 0, name
            try:
                self.agent.sync(self.host.targets(), ())
            except Killed:
                self.restart()
            self.host.kill_at = None
        elif known is not None and kind == "end":
            del self.host.guests[name]
        elif known is not None and kind == "class":
            known.qos_class = rest[0]
        elif known is not None and kind == "thread":
            self.host.add_thread(name)
        elif known is not None and kind == "own":
            self.host.make_own(name)
        elif kind == "join" and known is not None and rest[0] in self.host.guests:
            # Processes of one user may share their cookies.
            other = self.host.guests[rest[0]]
            if SCOPES[known.qos_class] is not CoreScope.NONE is not SCOPES[other.qos_class]:
                known.cookies[rest[1](known.cookies)] = other.cookies[other.main.pid]

    def look(self):
        self.agent.sync(self.host.targets(), ())
        notes, groups = self.store.kept_notes, {}
        for name, guest in self.host.guests.items():
            scope = SCOPES[guest.qos_class]
            if scope is not CoreScope.NONE:
                group = name if scope is CoreScope.GUEST or name not in notes else guest.qos_class
                groups.setdefault(group, set()).update(self.host.cookies_of(name))
                assert 0 not in self.host.cookies_of(name) or name not in notes
                assert (name in notes) != (name in self.agent.refused)
        # A guest of a class with cookies of another program is apart by these.
        for group, cookies in groups.items():
            others = set().union(*(each for other, each in groups.items() if other != group))
            assert not cookies & others
            assert len(cookies) == 1 or group not in notes
            assert LAUNCHER not in cookies or group not in notes
        assert set(self.agent.refused.values()) <= {(f"core_scheduling: {FOREIGN}",)}


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=14))
@example([("start", "a", "G", 1), ("start", "b", "G", 1), ("look",)])
@example([("start", "a", "C", 0), ("start", "b", "C", 0), ("kill", 1), ("look",)])
@example([("start", "a", "G", 1), ("start", "b", "G", 1), ("kill", 0), ("look",)])
@example([("start", "a", "G", 0), ("start", "b", "G", 0), ("look",), ("join", "b", "a", min), ("look",)])
def test_groups_are_apart_and_all_cookies_are_given_back(history):
    folder = Path(mkdtemp(dir=MEMORY))
    world = CookieWorld(folder)
    try:
        with (
            mock.patch.object(procfs, "identify_process", world.host.identify_process),
            mock.patch.object(procfs, "is_alive", world.host.is_alive),
        ):
            for event in history:
                world.happen(*event)
            world.look()
            writes = world.host.writes
            world.restart()
            world.look()
            assert world.host.writes == writes, "a restart gives no second cookie"
            for guest in world.host.guests.values():
                guest.qos_class = "LS"
            world.agent.sync(world.host.targets(), ())
            left = set().union(*map(world.host.cookies_of, world.host.guests))
            assert all(cookie % 2 for cookie in left if cookie)
            assert world.store.kept_notes.keys() <= world.host.guests.keys()
            assert not list(world.agent.release([one.guest for one in world.host.targets()], frozenset()))
    finally:
        shutil.rmtree(folder)
