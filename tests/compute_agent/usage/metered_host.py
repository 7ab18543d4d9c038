"""A host with guests that have groups with files of cgroup v2."""

from prometheus_client import CollectorRegistry

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.model.guest import GuestIdentity
from compute_agent.pipeline.guest_cache import CachedGuest, view_guest
from compute_agent.usage.guest_metrics import GuestMetrics
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver

CLASSES = QosClasses({"BE": QosClass("BE", 0)}, 0)

FILES = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nthrottled_usec 500000\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\nfull avg10=0.00 total=1\n",
    "memory.current": "5000\n",
    "memory.stat": "file 1000\nshmem 200\npgmajfault 7\n",
    "memory.swap.current": "4096\n",
    "io.stat": "8:0 rbytes=100 wbytes=30 rios=1\n8:16 rbytes=5 wbytes=0 dbytes=9\n",
}


class MeteredHost:
    """A host with guests that have groups below a folder."""

    def __init__(self, folder, most=None, registry=None):
        self.folder, self.most = folder, most
        self.views, self.limits = [], {}
        self.registry = registry or CollectorRegistry()
        self.now = 0.0
        GuestMetrics(
            lambda: list(self.views),
            FakeDriver({0}),
            lambda: CLASSES,
            lambda: self.limits,
            lambda: self.most,
            self.registry,
            clock=lambda: self.now,
        )

    def add(self, uuid, files=FILES, allocation=None, **identity):
        group = self.folder / uuid
        group.mkdir(parents=True)
        for name, text in files.items():
            (group / name).write_text(text)
        guest = build_guest(uuid, pid=4_000_000, cgroup=str(group), qos_class="BE")
        object.__setattr__(guest, "identity", GuestIdentity(**identity))
        self.views.append(view_guest(CachedGuest(guest, allocation)))

    def burn(self, uuid, seconds):
        (self.folder / uuid / "cpu.stat").write_text(f"usage_usec {seconds * 1_000_000}\n")

    def series(self):
        return {
            (one.name.removeprefix("compute_agent_guest_"), *one.labels.values()): one.value
            for family in self.registry.collect()
            for one in family.samples
        }

    def guests(self):
        return {key[1] for key in self.series()}
