"""The thread that measures how much CPU guests use, over minutes, for policies that go by it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compute_agent.drivers.base import GuestDriver
from compute_agent.loops.base import ReloadedConfiguration
from compute_agent.loops.subjects import SubjectFactory
from compute_agent.pipeline.events import UseMeasured
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.qos.rounds import MeasuringRound
from compute_agent.qos.sources import guests

LOG = logging.getLogger(__name__)

_PAUSE: Final = 15.0
_STOP_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class CpuAverage:
    """The CPU use of a guest, in cores, and over how many seconds it has been measured."""

    cores: float
    seconds: float


Averages = Mapping[str, CpuAverage]
"""By uuid of the guest."""


def smooth(
    before: Averages, use: Mapping[str, float], elapsed: float, window: float
) -> dict[str, CpuAverage]:
    """The averages with the use of another ``elapsed`` seconds; what is older than ``window`` counts little.

    Guests of which nothing was measured this time are not in it any more.
    """
    share = 1 - math.exp(-elapsed / window)
    found = {}
    for guest, cores in use.items():
        last = before.get(guest, CpuAverage(cores, 0.0))
        found[guest] = CpuAverage(last.cores + share * (cores - last.cores), last.seconds + elapsed)
    return found


class CpuUse:
    """Tells the worker what guests use, as long as ``[policy] load_aware`` is on."""

    def __init__(self, conf: ReloadedConfiguration, pipeline: GuestPipeline, driver: GuestDriver) -> None:
        self._conf = conf
        self._pipeline = pipeline
        self._subjects = SubjectFactory(driver)
        self._before: MeasuringRound | None = None
        self._averages: Averages = {}
        self._told: Mapping[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-use", daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go by another configuration from the next round on."""
        self._conf = conf

    def look(self, now: float) -> None:
        """Measure at ``now`` (monotonic seconds), and tell what has been measured for long enough."""
        policy = self._conf.options.policy
        if not policy.load_aware:
            self._before, self._averages = None, {}
            self._tell({})
            return
        window = policy.load_minutes * 60
        subjects = self._subjects.build(self._pipeline.views(), self._conf.settings.classes)
        this = MeasuringRound(now, self._conf.options.host.root, subjects)
        use = guests.cpu(this, self._before)
        if self._before is not None and now > self._before.time:
            self._averages = smooth(self._averages, use, now - self._before.time, window)
        this.close()
        self._before = this
        self._tell({guest: one.cores for guest, one in self._averages.items() if one.seconds >= window})

    def _tell(self, use: Mapping[str, float]) -> None:
        if use != self._told:
            self._pipeline.submit(UseMeasured(use))
            self._told = use

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE):
            try:
                self.look(time.monotonic())
            except Exception:
                LOG.exception("What guests use of CPUs cannot be told")
