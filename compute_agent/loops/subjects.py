"""From the guests of the pipeline to what watermarks measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestDriver
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.view import GuestView
from compute_agent.qos.classes import QosClasses
from compute_agent.qos.rounds import MeasuredGuest
from compute_agent.qos.snapshot import GuestAllotment
from compute_agent.qos.subjects import build_subject

CacheEntitlements = Callable[[GuestView], Mapping[ThrottleControl, GuestAllotment]]
"""What a guest may use of cache ways and memory bandwidth, by L3 domain."""


class SubjectFactory:
    """Makes subjects of guests; remembers when they started."""

    def __init__(self, driver: GuestDriver, cache_entitlements: CacheEntitlements | None = None) -> None:
        """Without ``cache_entitlements`` caches and bandwidth cannot be controlled here."""
        self._driver = driver
        self.cache_entitlements = cache_entitlements
        self._started: dict[tuple[str, int], float] = {}

    def build(self, views: Sequence[GuestView], classes: QosClasses) -> list[MeasuredGuest]:
        """The guests as they are measured and decided about."""
        known = self._started
        keys = [(view.guest.uuid, view.guest.pid) for view in views]
        # that of a process that is gone does not matter any more
        self._started = {key: known[key] if key in known else procfs.began(key[1]) or 0.0 for key in keys}
        return [self._subject(view, classes) for view in views]

    def _subject(self, view: GuestView, classes: QosClasses) -> MeasuredGuest:
        guest = view.guest
        return build_subject(
            guest,
            classes,
            dedicated=may_be_dedicated(view),
            started=self._started[guest.uuid, guest.pid],
            cgroup=guest.cgroup,
            pids=() if guest.cgroup else tuple(self._driver.processes(guest)),
            caches=self.cache_entitlements(view) if self.cache_entitlements else None,
        )


def may_be_dedicated(view: GuestView) -> bool:
    """Whether a guest has CPUs of its own, or could have: what it holds is not known."""
    if view.allocation is None or (view.assignment is not None and view.assignment.held):
        return True
    return any("PCPU" in amounts for amounts in view.allocation.values())
