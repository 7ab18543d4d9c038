"""Verifies promises to guests, such as dedicated CPUs, and reports broken promises as metrics and events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.events.event import EventKind, EventRecorder, NamedSubject
from compute_agent.inventory.attributes import promise_attributes
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops.base import ReloadedConfiguration, SingleThreadLoop, WakeReport
from compute_agent.promises.verdict import (
    PromiseKind,
    PromiseState,
    PromiseVerdict,
    broken_text,
    count_broken,
)
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec, log_failures

LOG = logging.getLogger(__name__)

_OFF_PAUSE: Final = 60.0
"""Seconds between two checks whether the option is on, while verification is off; a reload also wakes the
thread.
"""

PROMISES_THREAD: Final = ThreadSpec(
    "promises",
    "``[guests] verify_interval``",
    "compares promises to guests with the kernel, for metrics, events and the page of the fleet",
    NO_LOCK,
    "files of the host and of guests; wakes ``report``",
)


class PromiseWatch(SingleThreadLoop):
    """Verifies all promises at an interval, and reports broken promises."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        verify: Callable[[], list[PromiseVerdict]],
        recorder: EventRecorder,
        registry: CollectorRegistry,
        changed: WakeReport = lambda: None,
    ) -> None:
        """Prepare the loop.

        :param verify: verifies all promises to guests once.
        :param changed: called when the attribute of the host has changed and should be reported.
        """
        self._conf = conf
        self._verify = verify
        self._recorder = recorder
        self._changed = changed
        self._broken: dict[tuple[str, PromiseKind], str] = {}
        self._text = ""
        self._gauge = Gauge(
            "compute_agent_broken_promises",
            "Promises to guests that the kernel does not keep; `compute-agent guest verify` names them.",
            ["promise"],
            registry=registry,
        )
        for kind in PromiseKind:
            self._gauge.labels(kind.value)
        self._thread = PeriodicTask(
            PROMISES_THREAD,
            self.check_promises,
            lambda took: self._verify_interval or _OFF_PAUSE,
            log_failures(LOG, "Promises to guests cannot be verified"),
        )

    @property
    def _verify_interval(self) -> float:
        """The seconds between two verifications; 0 if verification is off."""
        return float(self._conf.options.guests.verify_interval)

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration, and verify at once."""
        super().reload(conf)
        self._thread.wake()

    def check_promises(self) -> None:
        """Verify all promises once. Record an event when a promise breaks or is kept again."""
        verdicts = self._verify() if self._verify_interval else []
        broken = {(one.guest, one.kind): one.found for one in verdicts if one.state is PromiseState.BROKEN}
        names = {one.guest: one.name for one in verdicts}
        for (guest, kind), found in broken.items():
            if (guest, kind) not in self._broken:
                self._recorder.record_done(
                    LOG.warning,
                    EventKind.VERIFY,
                    NamedSubject(guest, names[guest]),
                    "Guest %s: the promise %s is broken: %s",
                    kind.value,
                    found,
                )
        # A promise with an unknown state counts neither as broken nor as kept, and causes no event.
        kept = {(one.guest, one.kind) for one in verdicts if one.state is PromiseState.KEPT}
        for guest, kind in self._broken.keys() & kept:
            self._recorder.record_done(
                LOG.info,
                EventKind.VERIFY,
                NamedSubject(guest, names[guest]),
                "Guest %s: the promise %s is kept again",
                kind.value,
            )
        self._broken = broken
        counts = count_broken(verdicts)
        for kind, number in counts.items():
            self._gauge.labels(kind.value).set(number)
        text = broken_text(counts)
        if text != self._text:
            self._text = text
            self._changed()

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the provider tree with broken promises as an attribute of the agent's first provider."""
        return tree.with_attributes(promise_attributes(self._text)) if self._text else tree
