"""The interference loop: measures guests, decides, and throttles the guests that disturb others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from compute_agent.drivers.base import GuestThreads
from compute_agent.events.event import EventRecorder
from compute_agent.interference.cases import VERDICTS, CaseVerdict
from compute_agent.interference.decide import CaseDecision, InterferenceState, advance
from compute_agent.interference.reading import GuestSamples
from compute_agent.interference.signals import MIN_CPU
from compute_agent.interference.state import FILE, dump, limits, parse
from compute_agent.interference.suspects import CORRELATION_SECONDS
from compute_agent.interference.telemetry import InterferenceTelemetry
from compute_agent.interference.watch import InterferenceWatch
from compute_agent.loops.base import KeptFile, ReloadedConfiguration
from compute_agent.loops.cache_entitlements import open_entitlements
from compute_agent.loops.guest_readings import GuestReader
from compute_agent.loops.limits import LimitBook
from compute_agent.model.messages import GuestGoneError
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.qos.rounds import CacheReader
from compute_agent.threads import ONCE, PeriodicTask, ThreadSpec, run_aside

LOG = logging.getLogger(__name__)

INTERVAL: Final = 10.0
"""Seconds between two samples."""

OWNER: Final = "interference"
"""In the book of limits."""

INTERFERENCE_THREAD: Final = ThreadSpec(
    "interference",
    INTERVAL,
    "samples guests while interference is watched for, and limits the guests that disturb others",
    "that of the book of limits",
    "files of the host and of guests; the worker",
)

ESCALATE_THREAD: Final = ThreadSpec(
    "escalate",
    ONCE,
    "runs the command of ``escalate_command``",
    "none",
    "the operator's command",
)


class InterferenceLoop:
    """The loop. Its thread runs while there are watches, or something is still to be given back."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        book: LimitBook,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        cache: CacheReader | None = None,
        clock: Callable[[], float] = time.monotonic,
        blame: Callable[[str, str, str], None] = lambda guest, metric, cause: None,
    ) -> None:
        """What the agent before has limited is in the book when this returns.

        ``blame`` is told of each guest that was found guilty, of the metric that its lever limits, and of the
        signal.
        """
        self._blame = blame
        self._conf = conf
        self._pipeline = pipeline
        self._book = book
        self._clock = clock
        self._reader = GuestReader(driver, lambda: self._conf.settings.classes, conf.options.host.root, cache)
        self._take_up_entitlements()
        self._telemetry = InterferenceTelemetry(registry, recorder)
        self._file = KeptFile(
            Path(conf.options.state_path) / FILE,
            lambda content: parse(content, clock()),
            "What is known of interference",
        )
        self._state = self._file.load() or InterferenceState()
        self._samples: tuple[GuestSamples, ...] = ()
        self._untold: frozenset[str] = frozenset()
        self._owing = False
        """Whether something could not be given back yet."""
        self._thread = PeriodicTask(
            INTERFERENCE_THREAD,
            self.round,
            lambda took: INTERVAL,
            self._failed,
            is_needed=self._is_needed,
            rest=self._rest,
            keep=self._save,
        )
        book.keep(OWNER, limits(self._state.cases))

    # For other threads

    def start(self) -> None:
        """Begin, if there is anything to do."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go by other watches from the next round on."""
        self._conf = conf
        self._take_up_entitlements()
        self.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End, and keep what was learnt; limits stay, for the next agent.

        What hangs is not waited for longer than ``timeout`` seconds.
        """
        self._thread.stop(timeout)

    def document(self) -> list[dict[str, Any]]:
        """The cases, and the pairs that are remembered, as the command line shows them."""
        return self._telemetry.document(self._state, self._conf.watches, self._clock())

    def _take_up_entitlements(self) -> None:
        conf, pipeline = self._conf, self._pipeline
        found = open_entitlements(conf.controllers, lambda: pipeline.world.zones) if conf.watches else None
        self._reader.entitled_by(found)

    # The thread

    def _is_needed(self) -> bool:
        return bool(self._conf.watches or self._state.cases or self._owing)

    def _rest(self) -> None:
        self._samples, self._state = (), InterferenceState()
        self._reader.cycles.read(())  # whose counters are open files
        self._save()

    def _failed(self, is_new: bool) -> None:
        self._telemetry.round_failures.inc()
        if is_new:
            LOG.exception("A round of interference failed")

    def round(self) -> None:
        """One sample, here and now, and what follows of it; nothing before it is known which guests run."""
        if not self._pipeline.has_taken_over:
            return
        conf, pipeline, now = self._conf, self._pipeline, self._clock()
        views = pipeline.views()
        self._owing = not self._book.repair(views)
        signals = {watch.signal.name for watch in conf.watches}
        topology = pipeline.world.topology
        caches = [cache.cpus for cache in topology.l3_domains]
        sample = self._reader.read(views, topology.online, signals, now, caches)
        if sample is None:
            return
        self._say_untold(sample)
        self._samples = (*(one for one in self._samples if one.time > now - CORRELATION_SECONDS), sample)
        state, decisions = advance(conf.watches, conf.settings.rules.steps, self._state, self._samples)
        self._state = state
        if decisions or self._file.is_due(now):
            self._save()  # before acting: a crash meanwhile must leave no limit that nobody knows of
        watches = {watch.name: watch for watch in conf.watches}
        for decision in decisions:
            self._carry_out(decision, watches.get(decision.case.watch), sample)
        self._book.keep(OWNER, limits(self._state.cases))
        self._telemetry.show(self._state, conf.watches, sample)

    def _say_untold(self, sample: GuestSamples) -> None:
        """Warn, when that begins, of signals that nobody on this host tells though somebody works."""
        if not any((one.cpu or 0.0) >= MIN_CPU for one in sample.readings.values()):
            return
        signals = {watch.signal.name: watch.signal for watch in self._conf.watches}
        untold = frozenset(
            name
            for name, signal in signals.items()
            if not any(signal.values(one) for one in sample.readings.values())
        )
        for name in sorted(untold - self._untold):
            missing = self._reader.cycles.missing if name == "cpi" else ""
            LOG.warning(
                "No guest tells %s, for whose sake nobody is limited: it takes %s%s",
                name,
                signals[name].needs,
                missing and f"; {missing}",
            )
        for name in sorted((self._untold - untold) & signals.keys()):
            LOG.info("Guests tell %s again", name)
        self._untold = untold

    def _carry_out(
        self, decision: CaseDecision, watch: InterferenceWatch | None, sample: GuestSamples
    ) -> None:
        case = decision.case
        if decision.what is CaseVerdict.ESCALATE and watch is not None:
            run_aside(ESCALATE_THREAD, partial(self._escalate, decision, watch, sample))
            return
        if decision.acts:
            try:
                self._book.limit(OWNER, case.suspect, case.knob, decision.limit)
            except GuestGoneError:
                pass  # it disturbs nobody any more
            except Exception as error:  # whatever it is, another suspect may be luckier
                self._telemetry.tell(decision, watch, sample, f"{type(error).__name__}: {error}")
                if decision.takes:
                    self._state = self._state.without(case)
                    self._save()
                self._owing = True  # what is to be given back is tried again in every round
                return
        self._telemetry.tell(decision, watch, sample)
        if decision.what in VERDICTS and watch is not None:
            self._blame(case.suspect, watch.signal.lever.metric, watch.signal.name)

    def _escalate(self, decision: CaseDecision, watch: InterferenceWatch, sample: GuestSamples) -> None:
        assert watch.escalate is not None, "nobody escalates without a command"
        try:
            watch.escalate(decision.case.suspect)
        except Exception as error:
            self._telemetry.tell(decision, watch, sample, str(error))
        else:
            self._telemetry.tell(decision, watch, sample)

    def _save(self) -> None:
        now = self._clock()
        self._file.save(dump(self._state, now), now)
