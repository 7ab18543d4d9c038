"""Tests of the library on a kernel.

The same cases run on fake trees and, if RESCTRL_MOUNT names a mount, on the kernel's. The module needs
nothing but pytest, so that it can run in a virtual machine.
"""

import errno
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from compute_agent.resctrl import apply, groups, monitoring, mount
from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import DEFAULT_GROUP, read_groups, read_schemata
from compute_agent.resctrl.layout import build_layout, cache_mask
from compute_agent.resctrl.monitoring import CounterFiles
from compute_agent.resctrl.mount import read_platform
from compute_agent.resctrl.plan import CreateGroup, RemoveGroup, WriteSchemata, make_plan
from compute_agent.resctrl.platform import UNLIMITED_MBPS, CpuVendor
from compute_agent.resctrl.resolution import GuestDemand, resolve_groups
from compute_agent.resctrl.schemata import Schemata, WayMask
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from tests.waits import wait_for

MOUNT = os.environ.get("RESCTRL_MOUNT")
PREFIX = "test."
CLASSES = {
    "LSR": ShareSpec(WayRange(0, 100), mb=100),
    "LS": ShareSpec(WayRange(0, 100), mb=100),
    "BE": ShareSpec(WayRange(0, 30), mb=100),
}
GBPS = 10.0
"""100 % of the bandwidth, where the kernel takes MiB/s."""

if MOUNT is None:
    from tests.compute_agent.resctrl import fake

    MACHINES = {
        "intel": fake.INTEL,
        "intel-cdp": fake.INTEL_CDP,
        "intel-mbps": fake.INTEL_MBPS,
        "amd": fake.AMD,
        "arm": fake.ARM,
    }
else:
    MACHINES = {"kernel": None}


class ResctrlKernel:
    """A mount with its platform and codec."""

    def __init__(self, files, cpuinfo, options):
        self.files = files
        self.platform = read_platform(files, cpuinfo, options)
        gbps = GBPS if self.platform.mb and self.platform.mb.in_mbps else None
        self.engine = choose_codec(self.platform, gbps)

    @property
    def present(self):
        return read_groups(self.files)

    def host(self, shared_ways=2):
        return build_layout(self.platform, self.engine, self.present, PREFIX, shared_ways)

    def plan(self, demands, classes=CLASSES):
        host = self.host()
        resolution = resolve_groups(host, classes, demands, self.present)
        return resolution, make_plan(host, self.present, resolution)

    def sync(self, demands, classes=CLASSES):
        """Apply demands; check that all groups have the resolved values, and that no step is left."""
        resolution, plan = self.plan(demands, classes)
        exclusive = {name: group.exclusive.keys() for name, group in resolution.groups.items()}
        assert apply.apply_plan(self.files, plan.steps, self.engine, exclusive) == {}
        present = self.present
        for name, group in resolution.groups.items():
            for resource, domain, value in group.schemata:
                assert present.groups[name].schemata.get_value(resource, domain) == value
        assert self.plan(demands, classes)[1].steps == ()
        return resolution

    def mask(self, group, cache):
        return cache_mask(self.platform, read_schemata(self.files, group), cache)

    def values(self):
        return {name: group.schemata for name, group in self.present.groups.items()}


class Patient(ResctrlFilesystem):
    """Waits for the RMIDs of removed groups, which the kernel keeps busy as long as their cache lines are in
    use.
    """

    def make_folder(self, path):
        deadline = time.monotonic() + 60
        while True:
            try:
                return super().make_folder(path)
            except ResctrlError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


@pytest.fixture(params=MACHINES)
def kernel(request, tmp_path):
    if MOUNT is None:
        machine = MACHINES[request.param]
        files = fake.FakeResctrl.of(machine, tmp_path / "resctrl")
        yield ResctrlKernel(files, machine.cpuinfo, frozenset())
        return
    files = Patient(Path(MOUNT))
    found = mount.find_mount(Path("/"))
    before = read_schemata(files, DEFAULT_GROUP)
    yield ResctrlKernel(files, Path("/proc/cpuinfo").read_text(), found.options)
    for name in read_groups(files).groups:
        if name != DEFAULT_GROUP:
            files.remove_folder(name)
    for name in files.list_folders("mon_groups"):
        files.remove_folder(f"mon_groups/{name}")
    files.write_file("schemata", str(before))


@pytest.fixture
def cache(kernel):
    """The id of the last L3 cache, which is rarely 0."""
    return kernel.platform.l3.ids[-1]


@pytest.fixture
def process():
    """A process that creates nine threads, one after the other."""
    code = (
        "import threading, time\n"
        "print('up', flush=True)\n"
        "for _ in range(8):\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "    time.sleep(0.02)\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def threads(pid):
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def wait_for_threads(process):
    wait_for(lambda: len(threads(process.pid)) >= 9)


def test_the_platform_is_read_and_consistent(kernel):
    platform = kernel.platform
    assert platform.l3.ids == tuple(sorted(set(platform.l3.ids)))
    assert platform.l3.rules.find_fault(platform.l3.rules.all_ways) is None
    assert platform.l3.rules.all_ways.contains_mask(platform.l3.shareable)
    assert 1 < platform.max_groups <= platform.l3.closids
    assert set(platform.l3.way_bytes) == set(platform.l3.ids)
    assert all(size >= 4096 for size in platform.l3.way_bytes.values())
    assert platform.monitoring.rmids > 1
    assert monitoring.OCCUPANCY in platform.monitoring.features
    default = kernel.present.default_group.schemata
    for cache in platform.l3.ids:
        assert kernel.mask(DEFAULT_GROUP, cache) == platform.l3.rules.all_ways
    for domain in platform.mb.ids:
        assert default.get_value("MB", domain) == platform.mb.maximum[domain]
    if platform.vendor is CpuVendor.AMD:
        assert min(platform.mb.maximum.values()) > 100
    elif platform.mb.in_mbps:
        assert set(platform.mb.maximum.values()) == {UNLIMITED_MBPS}
    else:
        assert set(platform.mb.maximum.values()) == {100}


def test_every_percent_of_bandwidth_is_accepted_and_read_back(kernel):
    files, engine = kernel.files, kernel.engine
    files.make_folder("test.mb")
    domain = kernel.platform.mb.ids[-1]
    for percent in range(101):
        value = engine.encode_percent(domain, percent)
        wanted = Schemata({"MB": {domain: value}})
        groups.write_schemata(files, "test.mb", wanted)  # without an engine: exactly
        told = engine.decode_value(domain, value)
        assert told >= min(percent, 100)
        assert told - percent <= max(engine.percent_step, engine.min_percent)
    assert engine.decode_value(domain, kernel.present.default_group.schemata.get_value("MB", domain)) == 100


def test_every_range_of_ways_is_accepted(kernel, cache):
    files, l3 = kernel.files, kernel.platform.l3
    files.make_folder("test.cat")
    for first in range(0, 100, 7):
        for last in range(first + 1, 101, 9):
            mask = l3.rules.all_ways.percent_range(first, last, l3.rules.min_bits)
            wanted = Schemata({name: {cache: mask.bits} for name in l3.resources})
            groups.write_schemata(files, "test.cat", wanted)


def test_the_kernel_refuses_the_masks_that_the_rules_call_faulty(kernel, cache):
    files, l3 = kernel.files, kernel.platform.l3
    files.make_folder("test.cat")
    name, all_ways = l3.resources[0], l3.rules.all_ways
    for bits in (1, 2, 3, 5, 6, 9, 11, all_ways.bits, all_ways.bits - 2, all_ways.bits + 1):
        fault = l3.rules.find_fault(WayMask(bits))
        wanted = Schemata({name: {cache: bits}})
        if fault is None:
            groups.write_schemata(files, "test.cat", wanted)
            continue
        with pytest.raises(ResctrlError, match=r"mask|Mask") as caught:
            groups.write_schemata(files, "test.cat", wanted)
        assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("L3:{cache}=g\n", "Non-hex character in the mask g"),
        ("{l3}:{cache}\n", "Missing '=' or non-numeric domain"),
        ("{l3}\n", "Missing ':'"),
        ("L4:{cache}=1\n", "Unknown or unsupported resource name 'L4'"),
        ("{l3}:9999=1\n", ""),
        ("{l3}:{cache}=3;{cache}=3\n", "Duplicate domain {cache}"),
        ("MB:{domain}=x\n", "x"),
    ],
)
def test_a_refused_write_has_errno_and_the_kernels_reason(kernel, cache, text, status):
    names = {"cache": cache, "domain": kernel.platform.mb.ids[0], "l3": kernel.platform.l3.resources[0]}
    kernel.files.make_folder("test.bad")
    before = kernel.values()
    text = text.replace("L3:", "{l3}:").format(**names)
    with pytest.raises(ResctrlError) as caught:
        kernel.files.write_file("test.bad/schemata", text)
    assert caught.value.errno == errno.EINVAL
    assert status.format(**names) in str(caught.value)
    assert caught.value.filename.endswith("test.bad/schemata")
    assert kernel.values() == before


def test_a_missing_file_is_enoent(kernel):
    with pytest.raises(ResctrlError) as caught:
        kernel.files.remove_folder("test.none")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(ResctrlError) as caught:
        kernel.files.write_file("test.none/schemata", "L3:0=1\n")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(ResctrlError) as caught:
        kernel.files.make_folder("test.none/below")
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)
    groups.remove_group(kernel.files, "test.none")  # gone already is not an error


@pytest.mark.parametrize("path", ["info", "mon_groups", "mon_data"])
def test_folders_of_the_kernel_cannot_be_removed(kernel, path):
    with pytest.raises(ResctrlError) as caught:
        kernel.files.remove_folder(path)
    assert caught.value.errno == errno.EPERM


def test_a_group_that_exists_cannot_be_made_again(kernel):
    kernel.files.make_folder("test.twice")
    with pytest.raises(ResctrlError) as caught:
        kernel.files.make_folder("test.twice")
    assert caught.value.errno == errno.EEXIST


def test_classes_become_groups_with_their_part_of_the_ways(kernel):
    resolution = kernel.sync([GuestDemand("guest", "BE")])
    assert resolution.membership == {"guest": "test.class.BE"}
    assert set(kernel.present.groups) == {*resolution.groups}
    assert "test.class.LS" not in resolution.groups  # it has what the default group or LSR has
    all_ways = kernel.platform.l3.rules.all_ways
    for cache in kernel.platform.l3.ids:
        assert kernel.mask(DEFAULT_GROUP, cache) == all_ways
        assert kernel.mask("test.class.BE", cache) == all_ways.percent_range(0, 30)


def test_classes_are_changed_at_run_time(kernel):
    kernel.sync([])
    kernel.sync([], {**CLASSES, "BE": ShareSpec(WayRange(50, 100), mb=50)})
    ways, domain = kernel.platform.l3.rules.all_ways, kernel.platform.mb.ids[0]
    assert kernel.mask("test.class.BE", kernel.platform.l3.ids[0]) == ways.percent_range(50, 100)
    value = read_schemata(kernel.files, "test.class.BE").get_value("MB", domain)
    assert kernel.engine.decode_value(domain, value) == 50
    kernel.sync([], {"BE": CLASSES["BE"]})
    assert set(kernel.present.groups) == {DEFAULT_GROUP, "test.class.BE"}


def test_an_allocation_gets_ways_that_no_other_group_can_fill(kernel, cache):
    demand = GuestDemand("guest", "LS", ways={cache: 4}, bandwidth={cache: 30})
    kernel.sync([demand])
    own = kernel.mask("test.guest.guest", cache)
    assert len(own) == 4
    assert not own & kernel.platform.l3.shareable
    for name in kernel.present.groups:
        if name != "test.guest.guest":
            assert not own & kernel.mask(name, cache), name
    domain = kernel.platform.mb_domain(cache)
    shown = read_schemata(kernel.files, "test.guest.guest")
    assert kernel.engine.decode_value(domain, shown.get_value("MB", domain)) == 30
    for other in kernel.platform.l3.ids:
        if other != cache:
            assert kernel.mask("test.guest.guest", other) == kernel.platform.l3.rules.all_ways
    kernel.sync([])
    assert "test.guest.guest" not in kernel.present.groups
    assert kernel.mask(DEFAULT_GROUP, cache) == kernel.platform.l3.rules.all_ways


class Watching(ResctrlFilesystem):
    """Checks all exclusive masks after each write."""

    def __init__(self, files, look):
        super().__init__(files.root)
        self.files, self.look = files, look

    def write_file(self, path, text):
        self.files.write_file(path, text)
        self.look()

    def make_folder(self, path):
        self.files.make_folder(path)

    def remove_folder(self, path):
        self.files.remove_folder(path)
        self.look()


def test_ways_are_defragmented_while_guests_run_without_any_overlap(kernel, cache):
    platform = kernel.platform
    size = len(kernel.host().partitions[cache].pool) // 4
    four = [GuestDemand(f"g{n}", "LS", ways={cache: size}) for n in range(4)]
    if platform.max_groups < 8:
        pytest.skip("fewer than eight groups")
    kernel.sync(four)
    kernel.sync([four[1], four[3]])
    held = {name: kernel.mask(f"test.guest.{name}", cache) for name in ("g1", "g3")}
    wanted = [four[1], four[3], GuestDemand("large", "LS", ways={cache: 2 * size})]
    looks = []

    def look():
        masks = {name: kernel.mask(name, cache) for name in kernel.present.groups}
        running = {name: masks[f"test.guest.{name}"] for name in held}
        looks.append(running)
        assert all(running.values())
        for name, own in running.items():
            for other, mask in masks.items():
                # The new group has no tasks until its schemata is written.
                if other not in (f"test.guest.{name}", "test.guest.large"):
                    assert not own & mask, (name, other)

    resolution, plan = kernel.plan(wanted)
    apply.apply_plan(Watching(kernel.files, look), plan.steps, kernel.engine)
    assert looks
    masks = [kernel.mask(name, cache) for name in kernel.present.groups if ".guest." in name]
    assert sum(map(len, masks)) == 4 * size
    moved = [move for move in resolution.moves[cache] if move.owner != "test.guest.large"]
    assert len(moved) == (0 if platform.l3.rules.sparse else 1)
    assert kernel.plan(wanted)[1].steps == ()


def test_groups_are_counted_before_they_are_made(kernel, cache):
    room = kernel.platform.max_groups - 1
    wish = [GuestDemand(f"g{n:03}", "", bandwidth={cache: 50}, priority=n) for n in range(room + 2)]
    resolution = kernel.sync(wish, {})
    assert set(resolution.refused) == {"g000", "g001"}
    reason = f"all {kernel.platform.max_groups} resctrl groups are taken"
    assert resolution.refused["g000"] == (reason,)
    assert resolution.membership["g000"] == DEFAULT_GROUP
    # and the kernel agrees
    with pytest.raises(ResctrlError) as caught:
        kernel.files.make_folder("test.toomany")
    assert caught.value.errno == errno.ENOSPC
    assert "Out of" in caught.value.status


def test_a_failed_change_stops_only_its_own_group(kernel, cache):
    kernel.sync([GuestDemand("a", "LS", ways={cache: 2})])
    name = kernel.platform.l3.resources[0]
    steps = [
        WriteSchemata("test.class.BE", Schemata({name: {cache: 1}})),
        CreateGroup("test.guest.b", Schemata({name: {cache: 3}})),
        WriteSchemata("test.class.BE", Schemata({name: {cache: 0x10000000000}})),
        WriteSchemata("test.class.BE", Schemata({name: {cache: 3}})),
        WriteSchemata("test.guest.b", Schemata({name: {cache: 7}})),
    ]
    held_up = apply.apply_plan(kernel.files, steps, kernel.engine)
    assert list(held_up) == ["test.class.BE"]
    assert held_up["test.class.BE"].errno == errno.EINVAL
    assert "Mask out of range" in str(held_up["test.class.BE"])
    assert not getattr(held_up["test.class.BE"], "__notes__", [])
    found = kernel.values()
    assert (found["test.class.BE"].get_value(name, cache), found["test.guest.b"].get_value(name, cache)) == (
        1,
        7,
    )


def test_a_new_group_is_removed_if_its_values_are_refused(kernel, cache):
    name = kernel.platform.l3.resources[0]
    steps = [CreateGroup("test.half", Schemata({name: {cache: 1 << 40}}))]
    assert list(apply.apply_plan(kernel.files, steps)) == ["test.half"]
    assert "test.half" not in kernel.present.groups


def test_foreign_groups_are_listed_and_not_changed(kernel, cache):
    kernel.files.make_folder("somebody")
    kernel.files.make_folder("test.guest.gone")
    before = read_schemata(kernel.files, "somebody")
    demand = GuestDemand("guest", "LS", ways={cache: 2})
    _, plan = kernel.plan([demand])
    assert [(c.foreign, c.group, c.cache) for c in plan.conflicts] == [
        ("somebody", "test.guest.guest", cache)
    ]
    assert plan.steps[0] == RemoveGroup("test.guest.gone")
    kernel.sync([demand])
    assert read_schemata(kernel.files, "somebody") == before
    assert "test.guest.gone" not in kernel.present.groups


def test_ways_locked_by_foreign_groups_are_not_allocated(kernel):
    files, l3 = kernel.files, kernel.platform.l3
    low = WayMask(3)
    files.make_folder("somebody")
    rest = l3.rules.all_ways - low
    for group, mask in (("", rest), ("somebody", low)):
        lines = {name: dict.fromkeys(l3.ids, mask.bits) for name in l3.resources}
        groups.write_schemata(files, group, Schemata(lines))
    files.write_file("somebody/mode", "exclusive\n")
    assert kernel.present.groups["somebody"].is_locked
    # what the kernel gives to a new group avoids them
    files.make_folder("test.new")
    for cache in l3.ids:
        assert kernel.mask("test.new", cache) == rest
    with pytest.raises(ResctrlError, match="Overlaps with exclusive group"):
        files.write_file("test.new/schemata", f"{l3.resources[0]}:{l3.ids[0]}={low}\n")
    kernel.sync([GuestDemand("guest", "LS", ways={l3.ids[0]: 3})])
    assert not kernel.mask("test.guest.guest", l3.ids[0]) & low
    assert kernel.mask(DEFAULT_GROUP, l3.ids[-1]) == rest


def test_all_threads_are_moved_and_ended_threads_are_no_error(kernel, process):
    files = kernel.files
    files.make_folder("test.guest.a")
    ended = subprocess.Popen(["true"])
    ended.wait()
    moved = groups.move_tasks(files, "test.guest.a", lambda: [*threads(process.pid), ended.pid])
    assert moved >= 1
    wait_for_threads(process)
    groups.move_tasks(files, "test.guest.a", lambda: threads(process.pid))
    assert groups.read_tasks(files, "test.guest.a") == set(threads(process.pid))
    assert groups.move_tasks(files, "test.guest.a", lambda: threads(process.pid)) == 0
    assert process.pid not in groups.read_tasks(files, DEFAULT_GROUP)
    files.remove_folder("test.guest.a")
    assert set(threads(process.pid)) <= groups.read_tasks(files, DEFAULT_GROUP)


def test_a_dead_thread_and_an_invalid_id_are_refused(kernel):
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ResctrlError, match=f"No task {ended.pid}") as caught:
        kernel.files.write_file("tasks", f"{ended.pid}\n")
    assert caught.value.errno == errno.ESRCH
    with pytest.raises(ResctrlError) as caught:
        kernel.files.write_file("tasks", "abc\n")
    assert caught.value.errno == errno.EINVAL


def test_a_guest_that_shares_a_group_is_monitored_in_it(kernel, process):
    files = kernel.files
    wait_for_threads(process)
    files.make_folder("test.class.LS")
    assert monitoring.make_monitoring_group(files, "test.class.LS", "test.a")
    assert monitoring.make_monitoring_group(files, "test.class.LS", "test.a")  # again: it is there
    group = monitoring.monitoring_group("test.class.LS", "test.a")
    with pytest.raises(ResctrlError) as caught:
        files.write_file(f"{group}/tasks", f"{process.pid}\n")
    assert caught.value.errno == errno.EINVAL  # it has to be in the control group
    groups.move_tasks(files, "test.class.LS", lambda: threads(process.pid))
    groups.move_tasks(files, group, lambda: threads(process.pid))
    assert process.pid in groups.read_tasks(files, group)
    assert process.pid in groups.read_tasks(files, "test.class.LS")
    assert kernel.present.groups["test.class.LS"].monitoring_groups == ("test.a",)
    for where in (group, "test.class.LS", DEFAULT_GROUP):
        sample = read_counters(files, where)
        ids = {cache for cache, _ in sample.values}
        assert ids == set(kernel.platform.l3.ids)
        assert all(isinstance(value, int) and value >= 0 for value in sample.values.values())
    files.remove_folder("test.class.LS")  # takes the monitoring groups along
    with pytest.raises(ResctrlError) as caught:
        read_counters(files, group)
    assert caught.value.errno == errno.ENOENT


@pytest.mark.skipif(MOUNT is None, reason="the counters of the fake do not count")
def test_the_kernels_counters_show_a_lower_bandwidth_after_a_cap(kernel):
    files, engine = kernel.files, choose_codec(kernel.platform, GBPS)
    files.make_folder("test.guest.a")
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        groups.move_tasks(files, "test.guest.a", lambda: [busy.pid])
        before = bandwidth(files)
        least = {domain: engine.encode_percent(domain, 1) for domain in kernel.platform.mb.ids}
        groups.write_schemata(files, "test.guest.a", Schemata({"MB": least}))
        deadline = time.monotonic() + 60  # the kernel's control loop for MiB/s takes its time
        while (after := bandwidth(files)) > before / 2 and time.monotonic() < deadline:
            pass
    finally:
        busy.kill()
        busy.wait()
    print(f"bandwidth in MB/s: {before / 1e6:.0f}, then {after / 1e6:.0f} with {least}")
    assert 0 < after < before / 2


def read_counters(files, group):
    with closing(CounterFiles(files)) as counters:
        return counters.read_sample(group, time.monotonic())


def bandwidth(files):
    """The bytes a second that the group test.guest.a moves, over all caches."""
    totals = monitoring.BandwidthTotals()
    totals.add_sample(read_counters(files, "test.guest.a"))
    time.sleep(3)
    rates = totals.add_sample(read_counters(files, "test.guest.a"))
    return sum(rate for (_, event), rate in rates.items() if event == monitoring.TOTAL_BYTES)


def test_missing_rmids_raise_no_exception(kernel):
    spare = monitoring.spare_rmids(kernel.platform, kernel.present, lambda name: name.startswith("test."))
    made = 0
    while monitoring.make_monitoring_group(kernel.files, DEFAULT_GROUP, f"test.{made}"):
        made += 1
        assert made <= spare
    assert made == spare
