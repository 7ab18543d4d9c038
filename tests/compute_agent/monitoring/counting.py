"""A fake resctrl tree with counters that a test advances. Some trees require that counters are assigned to
groups.

The files of mode `mbm_event` are as in Documentation/filesystems/resctrl.rst of Linux 6.18.
"""

import errno
import re
from dataclasses import dataclass

from compute_agent.resctrl.mount import read_platform
from tests.compute_agent.resctrl.fake import INTEL, FakeMachine, FakeResctrl

BANDWIDTH = ("mbm_total_bytes", "mbm_local_bytes")


@dataclass(frozen=True)
class Mount:
    """A resctrl tree with its platform."""

    files: "CountingResctrl"
    platform: object


def mount(root, machine: FakeMachine = INTEL, counters: int | None = None) -> Mount:
    """A new resctrl tree. With `counters`, each cache has this number of counters, in mode mbm_event."""
    files = CountingResctrl.of(machine, root)
    if counters is not None:
        info = root / "info/L3_MON"
        (info / "mbm_assign_mode").write_text("[mbm_event]\ndefault\n")
        (info / "num_mbm_cntrs").write_text(";".join(f"{cache}={counters}" for cache in machine.l3) + "\n")
        files.left = dict.fromkeys(machine.l3, counters)
        files.assign_to("")
    return Mount(files, read_platform(files, machine.cpuinfo))


class CountingResctrl(FakeResctrl):
    """A resctrl tree in which the counters of a control group include those of its monitoring groups."""

    left: dict[int, int] | None = None
    """Counters that can be assigned, by cache; None: all count."""

    def count(self, group, cache, total, local=0, occupancy=None):
        """Let the tasks of a group move bytes, and fill the cache up to `occupancy` bytes."""
        parent = group.rpartition("mon_groups/")[0].rstrip("/") if "mon_groups/" in group else None
        for one in {group, parent} - {None}:
            for event, amount in zip(BANDWIDTH, (total, local), strict=True):
                if self.left is not None and (cache, event) not in self.assigned(group):
                    continue
                path = self._counter(one, cache, event)
                text = path.read_text().strip()
                path.write_text(f"{(int(text) if text.isdigit() else 0) + amount}\n")
            if occupancy is not None:
                self._counter(one, cache, "llc_occupancy").write_text(f"{occupancy}\n")

    def show(self, group, cache, event, text):
        """Set the text of a counter file."""
        self._counter(group, cache, event).write_text(f"{text}\n")

    def monitoring_groups(self):
        """The paths of all monitoring groups, sorted. A monitor may change groups at the same time."""
        found = [*self.root.glob("mon_groups/*"), *self.root.glob("*/mon_groups/*")]
        return sorted(str(path.relative_to(self.root)) for path in found)

    def assigned(self, group):
        """The counters assigned to a group, as pairs of cache and event."""
        path = self.root / group / "mbm_L3_assignments"
        found = set()
        for line in path.read_text().splitlines() if path.exists() else ():
            event, _, states = line.partition(":")
            found |= {(int(cache), event) for cache in re.findall(r"([0-9]+)=e", states)}
        return found

    def assign_to(self, group):
        """Act as the kernel does for a new group: assign free counters for both events."""
        self._show_assigned(group, set())
        for event in BANDWIDTH:
            for cache in self.left:
                if self.left[cache]:
                    self._assign(group, cache, event)
                else:
                    self.show(group, cache, event, "Unassigned")

    def make_folder(self, path):
        super().make_folder(path)
        if self.left is not None:
            self.assign_to(path)

    def remove_folder(self, path):
        for group in (
            path,
            *(f"{path}/mon_groups/{name}" for name in self.list_folders(f"{path}/mon_groups")),
        ):
            for cache, _ in self.assigned(group):
                self.left[cache] += 1
        super().remove_folder(path)
        if self.left is not None:
            self._tell_left()

    def write_file(self, path, text):
        group, _, name = path.rpartition("/")
        if name != "mbm_L3_assignments":
            super().write_file(path, text)
            return
        event, cache, state = re.fullmatch(r"(\w+):([0-9]+)=([e_])\n", text).groups()
        held = self.assigned(group)
        if state == "e" and (int(cache), event) not in held:
            if not self.left[int(cache)]:
                status = f"Failed to allocate counter for {event} in domain {cache}"
                raise self._refused(errno.ENOSPC, path, status)
            self._assign(group, int(cache), event)
        elif state == "_" and (int(cache), event) in held:
            self.left[int(cache)] += 1
            self._show_assigned(group, held - {(int(cache), event)})
            self.show(group, int(cache), event, "Unassigned")

    def _assign(self, group, cache, event):
        self.left[cache] -= 1
        self._show_assigned(group, self.assigned(group) | {(cache, event)})
        self.show(group, cache, event, 0)

    def _show_assigned(self, group, held):
        caches = sorted(self.left)
        (self.root / group / "mbm_L3_assignments").write_text(
            "".join(
                event + ":" + ";".join(f"{c}={'e' if (c, event) in held else '_'}" for c in caches) + "\n"
                for event in BANDWIDTH
            )
        )
        self._tell_left()

    def _tell_left(self):
        text = ";".join(f"{cache}={count}" for cache, count in self.left.items())
        (self.root / "info/L3_MON/available_mbm_cntrs").write_text(f"{text}\n")

    def _counter(self, group, cache, event):
        return self.root / group / "mon_data" / f"mon_L3_{cache:02}" / event
