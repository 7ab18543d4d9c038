"""What host and guests used since the last time, from one read of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from compute_agent.drivers.base import GuestDriver
from compute_agent.host.proc_stat import busy_parts, parse_cpu_times, stolen_parts
from compute_agent.loops.subjects import SubjectFactory
from compute_agent.model.guest import BEST_EFFORT
from compute_agent.model.resource import RECLAIMED_VCPU
from compute_agent.pipeline.view import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.qos.classes import QosClasses
from compute_agent.qos.rounds import MeasuringRound
from compute_agent.qos.sources import guests
from compute_agent.reclaim.zone import GuestUse, HostUse

MAX_SECONDS: Final = 300.0
"""Between two reads; what was used in a longer time tells little of peaks."""


@dataclass(frozen=True, slots=True)
class _CounterReading:
    round: MeasuringRound
    reclaimed: frozenset[str]


class HostUseReader:
    """Reads again and again, in one thread."""

    def __init__(
        self,
        pipeline: GuestPipeline,
        driver: GuestDriver,
        classes: Callable[[], QosClasses],
        root: str = "/",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``root`` is the folder that /proc is below; the folders of cgroups are taken as they are."""
        self._pipeline = pipeline
        self._subjects = SubjectFactory(driver)
        self._classes = classes
        self._root = root
        self._monotonic = monotonic
        self._before: _CounterReading | None = None

    def read(self, wall: float) -> HostUse | None:
        """What was used since the read before, at ``wall`` (seconds since the epoch); None the first time."""
        views = self._pipeline.views()
        now = MeasuringRound(self._monotonic(), self._root, self._subjects.build(views, self._classes()))
        path = f"{now.root}/proc/stat"
        last = self._before
        before = None if last is None else last.round
        cores = guests.cpu(now, before)
        times = now.parsed(path, parse_cpu_times)
        now.close()
        reclaimed = frozenset(view.guest.uuid for view in views if lives_on_rest(view))
        self._before = _CounterReading(now, reclaimed)
        first = None if before is None else before.parsed(path, parse_cpu_times)
        if last is None or times is None or first is None or now.time - last.round.time > MAX_SECONDS:
            return None
        measured = set(cores)
        gone = {subject.facts.uuid for subject in last.round.subjects} - measured
        return HostUse(
            wall,
            busy_parts(first, times),
            tuple(self._use(views, cores, reclaimed)),
            left=bool(gone),
            reclaimed_left=bool(gone & last.reclaimed),
            stolen=stolen_parts(first, times),
        )

    def _use(
        self, views: Sequence[GuestView], cores: dict[str, float], reclaimed: frozenset[str]
    ) -> list[GuestUse]:
        online = self._pipeline.world.topology.online
        return [
            GuestUse(
                view.guest.uuid,
                float(view.guest.settings.vcpus),
                online if view.assignment is None else view.assignment.cpus & online,
                cores.get(view.guest.uuid),
                view.guest.uuid in reclaimed,
            )
            for view in views
        ]


def lives_on_rest(view: GuestView) -> bool:
    """Whether a guest has no other CPUs than those that others leave."""
    return holds_of_rest_alone(view, RECLAIMED_VCPU, {"VCPU", "PCPU"})


def holds_of_rest_alone(view: GuestView, rest: str, own: Set[str]) -> bool:
    """Whether a guest of best effort holds of ``rest``, which others leave, and of none of its ``own``."""
    held = {
        name for amounts in (view.allocation or {}).values() for name, amount in amounts.items() if amount
    }
    return view.guest.settings.qos_class == BEST_EFFORT and rest in held and held.isdisjoint(own)
