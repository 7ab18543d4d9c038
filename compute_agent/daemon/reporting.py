"""The thread that talks to Placement: reports the host, reads what its guests hold, tries again with
back-off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from compute_agent.inventory.tree import ProviderTree
from compute_agent.pipeline.events import AllocationsRead
from compute_agent.pipeline.metrics import Metrics
from compute_agent.pipeline.worker import Pipeline
from compute_agent.pipeline.world import Allocation
from compute_agent.report.client import PlacementClient
from compute_agent.report.errors import NotFoundError, PlacementError
from compute_agent.report.reporter import Refusal, Reporter

LOG = logging.getLogger(__name__)

FIRST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """How reporting goes. Times are seconds since the epoch; ``up`` is None before the first attempt."""

    up: bool | None = None
    last_success: float | None = None
    last_error: str = ""
    refusals: tuple[Refusal, ...] = ()
    sent: int = 0


class ReportLoop:
    """Reports at once when woken, else every ``interval`` seconds, and sooner after a failure."""

    def __init__(
        self,
        reporter: Reporter,
        client: PlacementClient,
        pipeline: Pipeline,
        metrics: Metrics,
        interval: float,
        longest_pause: float,
    ) -> None:
        self._reporter = reporter
        self._client = client
        self._pipeline = pipeline
        self._metrics = metrics
        self.interval = interval
        self.longest_pause = longest_pause
        self.status = ReportStatus()
        self._next_client: PlacementClient | None = None
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        """Begin, with a report at once."""
        self._thread.start()

    def wake(self) -> None:
        """Report now: something changed."""
        self._wake.set()

    def use(self, client: PlacementClient) -> None:
        """Talk through another client from the next report on; for any thread."""
        self._next_client = client
        self.wake()

    def stop(self, timeout: float = 2.0) -> None:
        """End the loop; a request that hangs is not waited for longer than ``timeout`` seconds."""
        self._stopped = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        failures = 0
        while not self._stopped:
            self._wake.clear()
            failures = 0 if self.once() else failures + 1
            self._wake.wait(self._pause(failures))

    def _pause(self, failures: int) -> float:
        """Seconds until the next report after so many failures in a row."""
        if failures == 0:
            return self.interval
        return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), self.longest_pause)

    def once(self) -> bool:
        """One report and one look at allocations. False if anything failed or was refused."""
        if (client := self._next_client) is not None:
            self._next_client = None
            self._client = client
            self._reporter.use(client)
        try:
            report = self._reporter.report(self._pipeline.world.tree)
            self._read_allocations()
        except PlacementError as error:
            self._failed(str(error))
            return False
        except OSError as error:
            self._failed(f"what is to be reported cannot be remembered: {error}")
            return False
        except Exception as error:
            LOG.exception("The report failed")
            self._failed(f"internal error: {type(error).__name__}: {error}")
            return False
        self._metrics.placement_up.set(1)
        self._metrics.refused_changes.set(len(report.refusals))
        self._metrics.reports.labels("refused" if report.refusals else "ok").inc()
        if report.refusals != self.status.refusals:
            for refusal in report.refusals:
                LOG.warning("Placement refused %s: %s", describe(refusal), refusal.reason)
        if report.sent:
            LOG.info("Placement took %d changes", report.sent)
        if not self.status.up:
            LOG.info("Placement answers")
        self.status = ReportStatus(True, time.time(), "", report.refusals, self.status.sent + report.sent)
        return not report.refusals

    def _failed(self, reason: str) -> None:
        if self.status.up is not False or reason != self.status.last_error:
            LOG.warning("Report to Placement failed, will be tried again: %s", reason)
        self._metrics.placement_up.set(0)
        self._metrics.reports.labels("failed").inc()
        self.status = replace(self.status, up=False, last_error=reason)

    def _read_allocations(self) -> None:
        """Tell the worker whose allocation is another than it thinks."""
        as_of = time.monotonic()
        held = allocations_by_consumer(self._client, self._pipeline.world.tree)
        changed: dict[str, Allocation] = {}
        for view in self._pipeline.views():
            uuid = view.guest.uuid
            if held.get(uuid, {}) != view.allocation:
                # The listing is a request per provider: an allocation that just moves between two of them
                # may be seen on none. The consumer's own record is read at once.
                changed[uuid] = self._client.allocations(uuid).resources
        if changed:
            self._pipeline.submit(AllocationsRead(changed, as_of))


def allocations_by_consumer(
    client: PlacementClient, tree: ProviderTree
) -> dict[str, dict[str, dict[str, int]]]:
    """What consumers hold on the host's providers: amounts by consumer, provider and resource class."""
    held: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for node in tree.nodes:
        if not node.inventories:
            continue
        try:
            consumers = client.provider_allocations(node.uuid)
        except NotFoundError:
            continue  # it could not be created so far, and nobody holds anything of it
        for consumer, resources in consumers.items():
            held[consumer][node.uuid] = resources
    return dict(held)


def describe(refusal: Refusal) -> str:
    """A refused change in a few words."""
    action = refusal.action
    name = getattr(action, "name", None) or getattr(action, "uuid", "")
    return f"{type(action).__name__} {name}"


def status_document(status: ReportStatus, now: Callable[[], float] = time.time) -> Mapping[str, Any]:
    """The status as the command line shows it."""
    return {
        "placement": {None: "not asked yet", True: "up", False: "away"}[status.up],
        "last_report_seconds_ago": None
        if status.last_success is None
        else round(now() - status.last_success, 1),
        "last_error": status.last_error,
        "refused": [f"{describe(refusal)}: {refusal.reason}" for refusal in status.refusals],
    }
