"""The command ``compute-agent cpu noise``, and a function that measures noise: interruptions of guests."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compute_agent.agent.parked_cpus import known_topology
from compute_agent.agent.protocol import RequestError
from compute_agent.cmd.base import AgentLister, Commands, LinesColumn
from compute_agent.host.reader import read_topology
from compute_agent.inventory import options
from compute_agent.inventory.cpu_sets import resolve_cpu_sets
from compute_agent.isolation.noise import CpuNoise, NoiseReader, compare_readings
from compute_agent.isolation.osnoise import (
    MAX_SECONDS,
    ORIGINAL_FILE,
    OsNoiseTracer,
    TracedNoise,
    TracerError,
)
from compute_agent.isolation.surroundings import read_boot_isolation
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.monitoring.readings import find_counter_cpus

if TYPE_CHECKING:
    from oslo_config import cfg

_COLUMNS: Final = (
    *("cpu", "guest", "level", "by", "interrupts", "softirqs", "involuntary", "delay_us", "tick"),
    *("longest_us", "causes"),
)
_DEFAULT_SECONDS: Final = 5
_COUNTING: Final = "the kernel reads counters of resctrl here, for all CPUs of the cache"


@dataclass(frozen=True, slots=True)
class CpuHolders:
    """The guests that hold dedicated CPUs, from an answer of the daemon.

    :ivar guests: the name of the guest that holds each CPU.
    :ivar levels: the isolation level of each CPU.
    :ivar threads: the ids of the threads of guest CPUs.
    """

    guests: Mapping[int, str] = field(default_factory=dict)
    levels: Mapping[int, str] = field(default_factory=dict)
    threads: frozenset[int] = frozenset()

    @classmethod
    def parse_rows(cls, rows: Sequence[Mapping[str, Any]]) -> CpuHolders:
        """Parse the rows of an answer to ``cpu.holders``."""
        guests, levels, threads = {}, {}, set()
        for row in rows:
            for cpu in cpuset.parse(row["cpus"]):
                guests[cpu], levels[cpu] = row["name"], row["level"]
            threads.update(row["threads"])
        return cls(guests, levels, frozenset(threads))


def measure_noise(
    root: Path,
    cpus: CpuSet,
    threads: frozenset[int],
    seconds: float,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[int, CpuNoise]:
    """Measure the interruptions of CPUs, from counters at the beginning and at the end of a pause.

    :param threads: the ids of the threads of guest CPUs; their delays are measured.
    :raises ValueError: no time has passed.
    """
    reader = NoiseReader(root)
    before = reader.read_counters(cpus, threads)
    sleep(seconds)
    return compare_readings(before, reader.read_counters(cpus, threads))


class CpuNoiseList(AgentLister):
    """Measure how often the CPUs of guests are interrupted per second, by cause.

    The command reads counters of the kernel twice. The columns show how often interrupts, softirqs, other
    threads and the timer tick interrupt the threads of guest CPUs, and how long these threads wait. With
    --osnoise, the kernel's tracer osnoise measures the dedicated CPUs that no guest holds, with a busy thread
    on each CPU. The command then restores the settings of the tracer.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--guest", help="uuid or name of the guest; all guests with dedicated CPUs by default"
        )
        which.add_argument(
            "--osnoise",
            action="store_true",
            help="measure the dedicated CPUs that no guest holds, with the tracer osnoise; needs root",
        )
        parser.add_argument(
            "--seconds",
            type=int,
            default=_DEFAULT_SECONDS,
            choices=range(1, MAX_SECONDS + 1),
            metavar="N",
            help=f"duration of the measurement, 1 to {MAX_SECONDS}; {_DEFAULT_SECONDS} by default",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon which guests hold CPUs, and measure; return a row for each CPU."""
        conf = self.load_conf()
        rows = self.ask_daemon("cpu.holders")
        holders = CpuHolders.parse_rows(rows)
        if parsed_args.osnoise:
            return _COLUMNS, list(self._trace_free(conf, holders, parsed_args.seconds))
        if parsed_args.guest is not None:
            rows = [row for row in rows if parsed_args.guest in (row["uuid"], row["name"])]
            if not rows:
                raise RequestError(f"no guest {parsed_args.guest} holds dedicated CPUs")
            holders = CpuHolders.parse_rows(rows)
        if not holders.guests:
            self.say_why_empty("Nothing to measure: no guest holds dedicated CPUs.")
            return _COLUMNS, []
        cpus, root = frozenset(holders.guests), Path(conf.host.root)
        found = measure_noise(root, cpus, holders.threads, parsed_args.seconds)
        counting = _counter_cpus(root)
        return _COLUMNS, [_passive_row(cpu, noise, holders, cpu in counting) for cpu, noise in found.items()]

    def _trace_free(self, conf: cfg.ConfigOpts, holders: CpuHolders, seconds: int) -> Any:
        root = Path(conf.host.root)
        topology = known_topology(conf, read_topology(root))
        sets = resolve_cpu_sets(options.cpu_options(conf), topology)
        # The tracer runs a busy thread on each CPU, so CPUs of guests and offline CPUs are left out.
        free = (sets.dedicated & topology.online) - holders.guests.keys()
        if not free:
            self.say_why_empty("Nothing to measure: guests hold all dedicated CPUs.")
            return
        tracer = OsNoiseTracer(root, Path(conf.state_path) / ORIGINAL_FILE)
        try:
            found = tracer.trace_cpus(frozenset(free), seconds)
        except TracerError as error:
            raise RequestError(str(error)) from error
        for cpu, noise in sorted(found.items()):
            yield _traced_row(cpu, noise)


def _counter_cpus(root: Path) -> CpuSet:
    """The CPUs on which the kernel reads counters of resctrl; an empty set if resctrl has no counters."""
    if not (root / "sys/fs/resctrl/mon_data").is_dir():
        return frozenset()
    caches = [cache.cpus for cache in read_topology(root).l3_domains]
    return find_counter_cpus(caches, read_boot_isolation(root).tickless)


def _passive_row(cpu: int, noise: CpuNoise, holders: CpuHolders, is_counting: bool) -> tuple[Any, ...]:
    causes = [f"{cause}: {rate:.1f}" for cause, rate in noise.causes.items()]
    if is_counting:
        causes.append(_COUNTING)
    return (
        *(cpu, holders.guests.get(cpu, ""), holders.levels.get(cpu, ""), "counters"),
        *map(
            _rounded_rate, (noise.interrupts, noise.softirqs, noise.involuntary, noise.delay_us, noise.tick)
        ),
        None,
        LinesColumn(causes),
    )


def _traced_row(cpu: int, noise: TracedNoise) -> tuple[Any, ...]:
    seconds = max(noise.runtime_us, 1) / 1e6
    causes = {
        "hardware": noise.hardware,
        "nmi": noise.nmi,
        "interrupts": noise.interrupts,
        "softirqs": noise.softirqs,
        "threads": noise.threads,
    }
    return (
        *(cpu, "", "", "osnoise", _rounded_rate(noise.interrupts / seconds)),
        *(_rounded_rate(noise.softirqs / seconds), _rounded_rate(noise.threads / seconds)),
        *(_rounded_rate(noise.noise_us / seconds), None, noise.longest_us),
        LinesColumn([f"{cause}: {number / seconds:.1f}" for cause, number in causes.items() if number]),
    )


def _rounded_rate(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)


COMMANDS: Final[Commands] = {"cpu noise": CpuNoiseList}
