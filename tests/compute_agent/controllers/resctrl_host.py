"""The resctrl controller on a fake tree, with threads of this process as the threads of guests."""

import threading

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.events.event import EventRecorder
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.messages import GuestGoneError
from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.groups import read_groups, read_schemata, read_tasks
from compute_agent.resctrl.layout import cache_mask
from compute_agent.resctrl.mount import ResctrlHandle, ResctrlOptions, read_platform
from tests.compute_agent.builders import build_guest

ONLINE = frozenset(range(8))


def zones(caches):
    """The root provider, and a provider for each cache: `l3-0`, `l3-1` and so on."""
    root = ProviderNode("host", "root", None, l3_ids=frozenset(caches))
    return root, *(
        ProviderNode(f"host_L3_{cache}", f"l3-{number}", "root", l3_ids=frozenset({cache}))
        for number, cache in enumerate(caches)
    )


class GuestThreads:
    """Threads of this process, because the fake tree refuses thread ids that do not exist."""

    def __init__(self, count):
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ended.wait, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        self.ids = [thread.native_id for thread in self._threads]

    def close(self):
        self._ended.set()


class ThreadsDriver:
    """A driver that only lists the threads of guests."""

    def __init__(self):
        self.threads = {}

    def thread_ids(self, guest):
        try:
            return frozenset(self.threads[guest.uuid])
        except KeyError:
            raise GuestGoneError(guest.uuid) from None

    def recent_threads(self, guest):
        return self.thread_ids(guest)


class ResctrlHost:
    """A resctrl controller on a fake tree."""

    def __init__(self, files, machine, tids, shared_ways=2, classes=DEFAULT_CLASSES, caches=(0, 1)):
        self.files = files
        self.zones = zones(tuple(caches))
        self.platform = read_platform(files, machine.cpuinfo)
        self.options = ResctrlOptions(shared_ways=shared_ways)
        self.driver = ThreadsDriver()
        self.tids = iter(tids)
        self.targets = {}
        self.restart(classes)

    def restart(self, classes=DEFAULT_CLASSES):
        control = ResctrlHandle(self.files, self.platform, choose_codec(self.platform), self.options)
        self.events = []
        self.controller = ResctrlController(self.driver, control, classes, EventRecorder(self.events.append))

    def guest(self, uuid, allocation=None, *, limits=None, threads=2, **settings):
        """Start a guest, or change a running guest."""
        if uuid not in self.driver.threads:
            self.driver.threads[uuid] = [next(self.tids) for _ in range(threads)]
        guest = build_guest(uuid, **{"qos_class": "LS"} | settings)
        self.targets[uuid] = GuestTarget(guest, None, ONLINE, allocation, limits or {})

    def end(self, uuid):
        del self.driver.threads[uuid], self.targets[uuid]

    def sync(self):
        self.controller.sync(tuple(self.targets.values()), self.zones)

    def work(self):
        """Call the controller as the worker does after a change."""
        self.sync()
        return {uuid: self.controller.apply(target) for uuid, target in self.targets.items()}

    def drift(self):
        """Call the controller as the worker does at each reconcile; return the differences."""
        self.sync()
        return {uuid: self.controller.describe_drift(target) for uuid, target in self.targets.items()}

    def group(self, uuid):
        return self.controller.membership[uuid]

    def inside(self, uuid):
        """Whether all threads of a guest are in its control group."""
        return set(self.driver.threads[uuid]) <= read_tasks(self.files, self.group(uuid))

    def mask(self, group, cache):
        return cache_mask(self.platform, read_schemata(self.files, group), cache)

    def bandwidth(self, group, cache):
        return read_schemata(self.files, group).get_value("MB", cache)

    def groups(self):
        return set(read_groups(self.files).groups) - {""}


CLASS_GROUPS = {"compute-agent.class.BE"}
"""The groups of LSR and LS have the ways of the default group."""
