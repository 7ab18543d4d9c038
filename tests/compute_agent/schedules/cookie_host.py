"""A host in memory with guests, and with the core scheduling cookies of their threads: driver, kernel and
processes.
"""

import itertools
from dataclasses import dataclass, field

from compute_agent.controllers.base import GuestTarget
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.messages import GuestGoneError
from tests.compute_agent.builders import build_guest, cpu_set

PLACE = CpuAssignment((cpu_set(0),), cpu_set(0))


class Killed(BaseException):
    """The agent ends at this moment, in the middle of its work."""


@dataclass
class CookieProcess:
    uuid: str
    qos_class: str
    main: ProcessIdentity
    cookies: dict[int, int]
    preserve: bool = False
    own: set[int] = field(default_factory=set)


class CookieHost:
    """A host on which cookies of the agent are even numbers, and those of other programs odd numbers."""

    def __init__(self):
        self.guests, self.writes, self.kill_at, self.refusal = {}, 0, None, None
        self.own_problem = None
        #: Refusals by guest, and the number of grants at which a guest makes a thread.
        self.refusing, self.busy = {}, {}
        self._numbers = itertools.count(100)
        self._even, self._odd = itertools.count(2, 2), itertools.count(3, 2)

    # Guests

    def start(self, uuid, qos_class="", cookie=0):
        pid = next(self._numbers)
        main = ProcessIdentity(pid, pid * 7, "boot")
        self.guests[uuid] = CookieProcess(uuid, qos_class, main, {pid: cookie, next(self._numbers): cookie})

    def add_thread(self, uuid):
        guest = self.guests[uuid]
        guest.cookies[next(self._numbers)] = guest.cookies[guest.main.pid]

    def make_own(self, uuid):
        guest = self.guests[uuid]
        guest.cookies = dict.fromkeys(guest.cookies, next(self._odd))

    def targets(self):
        return [
            GuestTarget(
                build_guest(
                    one.uuid, pid=one.main.pid, qos_class=one.qos_class or "LS", preserve=one.preserve
                ),
                PLACE,
                cpu_set(0),
            )
            for one in self.guests.values()
        ]

    def cookies_of(self, uuid):
        return set(self.guests[uuid].cookies.values())

    # The driver, and the processes

    def thread_ids(self, guest):
        if guest.uuid not in self.guests or self.guests[guest.uuid].main.pid != guest.pid:
            raise GuestGoneError(guest.uuid)
        return frozenset(self.guests[guest.uuid].cookies)

    def identify_process(self, pid):
        return next((one.main for one in self.guests.values() if one.main.pid == pid), None)

    def is_alive(self, identity):
        return self.identify_process(identity.pid) == identity

    # The kernel

    def read_cookie(self, tid):
        if self.refusal:
            raise self.refusal
        owner = self._owner_of(tid)
        return None if owner is None else owner.cookies[tid]

    def clear_own_cookie(self):
        if self.own_problem:
            raise self.own_problem

    def create_cookie(self, pid):
        self._note_write()
        owner = self._owner_of(pid)
        self._refuse(owner)
        owner.cookies = dict.fromkeys(owner.cookies, next(self._even))

    def grant_cookie(self, source, tids):
        cookie = self.read_cookie(source) if source else 0
        for tid in tids:
            self._note_write()
            owner = self._owner_of(tid)
            self._refuse(owner)
            if self.busy.get(owner.uuid, 0) > 0:
                self.busy[owner.uuid] -= 1
                owner.cookies[next(self._numbers)] = owner.cookies[tid]
            owner.cookies[tid] = cookie

    def _owner_of(self, tid):
        return next((one for one in self.guests.values() if tid in one.cookies), None)

    def _refuse(self, owner):
        if owner.uuid in self.refusing:
            raise self.refusing[owner.uuid]

    def _note_write(self):
        if self.kill_at is not None and self.writes >= self.kill_at:
            raise Killed
        self.writes += 1
