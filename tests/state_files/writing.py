"""State files that an agent of a small host does not have, written by the agent's own functions.

An agent writes them only with pools, watermarks, reclaimed resources, isolation or real-time guests. Each has
the values that its part keeps.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.files import write_durably
from compute_agent.fleet import configuration, revision
from compute_agent.inventory import cpu_pools
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.isolation import originals, osnoise
from compute_agent.isolation.irqbalance import KeptBan
from compute_agent.loops import fleet
from compute_agent.model.resource import ThrottleControl
from compute_agent.monitoring.samples import FILE as SAMPLES_FILE
from compute_agent.monitoring.samples import SampleStore, StoredSample
from compute_agent.reclaim import collectors, estimate, offers
from compute_agent.schedules import run_notes
from compute_agent.throttling import state_file
from compute_agent.throttling.interference.cases import CasePhase, InterferenceCase, SuspectPair
from compute_agent.throttling.interference.evidence import SignalBaseline, SignalTrack
from compute_agent.throttling.interference.state import InterferenceState, PairRecord, SignalKey
from compute_agent.throttling.watermarks.state import EvictAction, ThrottledGuest, WatermarkState
from compute_agent.usage import week_uses

TIME: Final = 1_795_736_807.0
"""The time of all entries, in seconds since the epoch."""
NOW: Final = 1000.0
"""The monotonic time of writers and readers, in seconds."""
_ROOT, _ZONE, _POOL = (f"dea1790d-a270-5ad2-bccd-4815ec1832f{number}" for number in range(3))
_ONE, _OTHER = "c508fea9-ce8c-46b0-9294-447f180a05ae", "e81cd0e0-d2f0-40f9-803d-07e23e87cecd"
_BOOT: Final = "0695acb7-1963-4a20-abb2-9a3043e1d856"
_QUOTA: Final = ThrottleControl("cpu_quota")


def _throttling() -> bytes:
    watermarks = WatermarkState(
        (ThrottledGuest(_OTHER, _QUOTA, 1.5),), (EvictAction(_ONE, "memory_usage"),), scheduling_off=True
    )
    case = InterferenceCase("cpu", _ONE, _OTHER, _QUOTA, 0.9, 0.3, (2.0,), 1, CasePhase.HOLD, 900.0)
    pairs = {SuspectPair("cpu", _ONE, _OTHER): PairRecord(0.0, 2, 900.0)}
    tracks = {SignalKey(_ONE, "run_delay", ""): SignalTrack(SignalBaseline(0.1, 0.01, 40))}
    both = state_file.ThrottlingState(watermarks, InterferenceState((case,), pairs, tracks))
    return state_file.dump_state(both, NOW)


def _uses() -> bytes:
    use = week_uses.WeekUse()
    for hour in range(0, 168, 3):
        use = use.with_hour(hour, hour / 100, TIME)
    return week_uses.USES_FORMAT.dump({_ONE: use, _OTHER: week_uses.WeekUse(seen=TIME)})


def _capacity() -> bytes:
    history = estimate.ZoneHistory(
        TIME,
        (1.5, 2.25),
        estimate.UseSpread(1.9, 0.4),
        2.5,
        TIME - 60,
        {_ONE: estimate.HourlyPeaks((1.0,), 1.0)},
    )
    offer = offers.CapacityOffer(2, 2.5, TIME, TIME - 30, 3)
    return offers.ZONES_FORMAT.dump(
        {_ZONE: offers.ZoneState(history, offer, offers.HeldBackShare(0.5, 2, 600.0, TIME))}
    )


def _stolen() -> bytes:
    return offers.RESERVES_FORMAT.dump(
        {_ZONE: offers.StolenReserve(((TIME, 0.02),), 1, TIME - 60, TIME - 30, 1)}
    )


def _collected() -> bytes:
    offer = offers.CapacityOffer(4, 4.5, TIME)
    amount = collectors.CollectedAmount(5.0, 0.5, TIME + 600, offer)
    known = collectors.CollectedClasses(frozenset({"CUSTOM_LICENCE"}), {("CUSTOM_LICENCE", _ROOT): amount})
    return collectors.CLASSES_FORMAT.dump({"licences": known})


def _isolation() -> bytes:
    one, two = frozenset({0, 1}), frozenset({2, 3})
    masks = {"proc/irq/24/smp_affinity_list": originals.OriginalMask(one | two, "0-3", "eth0", (one,))}
    groups = {"sys/fs/cgroup/machine.slice/cpuset.cpus.partition": "member"}
    bans = {"irqbalance812.sock@3141": KeptBan(one, two)}
    kept = originals.OriginalMasks(_BOOT, two, masks, two, groups, bans)
    return originals.dump_originals(kept)


def _keep_pools(folder: Path) -> None:
    nodes = (
        ProviderNode("compute-1", _ROOT, None, cpus=frozenset(range(8))),
        ProviderNode("compute-1_NUMA_0", _ZONE, _ROOT, cpus=frozenset(range(8))),
        ProviderNode("compute-1_NUMA_0_POOL_gold", _POOL, _ZONE, cpus=frozenset({6, 7}), pool="gold"),
    )
    cpu_pools.keep_pools(folder, ProviderTree(nodes))


def _keep_notes(name: str) -> Callable[[Path], None]:
    main, lender = ProcessIdentity(9020, 527005, _BOOT), ProcessIdentity(9058, 527938, _BOOT)
    note = run_notes.RunNote(main, 17, "group", run_notes.CookieLender(lender, 18))
    notes = {_ONE: note, _OTHER: run_notes.RunNote(lender)}
    return lambda folder: run_notes.RunNotesFile(folder / name).keep_notes(notes)


def _keep_samples(folder: Path) -> None:
    store = SampleStore(folder / SAMPLES_FILE, retention=3600.0, max_bytes=1 << 20)
    store.add(
        (StoredSample(TIME, _ONE, "db", "LS", 0, 4096, 1.5, 2.5, 0.25), StoredSample(TIME, _OTHER, "", "BE"))
    )
    try:
        store.flush(TIME)
    finally:
        store.close()


def _content(name: str, make: Callable[[], bytes]) -> Callable[[Path], None]:
    return lambda folder: write_durably(folder / name, make())


WRITERS: Final[Mapping[str, Callable[[Path], None]]] = {
    cpu_pools.FILE_NAME: _keep_pools,
    run_notes.COOKIES_FILE: _keep_notes(run_notes.COOKIES_FILE),
    run_notes.PRIORITIES_FILE: _keep_notes(run_notes.PRIORITIES_FILE),
    SAMPLES_FILE: _keep_samples,
    osnoise.ORIGINAL_FILE: lambda folder: osnoise.keep_cpus(folder / osnoise.ORIGINAL_FILE, "0-7"),
    fleet.FILE: lambda folder: fleet.write_applied(folder / fleet.FILE, {_ONE: {"qos_class": "BE"}}),
} | {
    name: _content(name, make)
    for name, make in {
        state_file.FILE_NAME: _throttling,
        week_uses.FILE: _uses,
        offers.FILE: _capacity,
        offers.MEMORY_FILE: _capacity,
        offers.STOLEN_FILE: _stolen,
        collectors.FILE: _collected,
        originals.ORIGINALS_FILE: _isolation,
        configuration.KEPT_FILE: lambda: revision.write(
            b"[DEFAULT]\ncpu_allocation_ratio = 4.0\n", "edge", 7
        ),
    }.items()
}
"""Writers of a state folder by the name of their file."""


def write_missing(folder: Path) -> None:
    """Write the files that a state folder does not have."""
    for name, write in WRITERS.items():
        if not (folder / name).exists():
            write(folder)
