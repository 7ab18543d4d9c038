"""The thread between driver and worker: what a guest that just started may use is asked for on the way."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from compute_agent.drivers.base import ChangeKind, GuestChange
from compute_agent.loops.base import ReloadedConfiguration
from compute_agent.model.guest import Allocation
from compute_agent.pipeline.events import Event, GuestStarted, GuestStopped
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient

LOG = logging.getLogger(__name__)


class GuestEvents:
    """Hands a driver's changes to the pipeline, in their order."""

    def __init__(self, pipeline: GuestPipeline, client: PlacementClient, missed: Callable[[], None]) -> None:
        """``missed`` is called when the pipeline has a guest for which Placement has to be asked again."""
        self._pipeline = pipeline
        self._client = client
        self._missed = missed
        self._changes: queue.SimpleQueue[tuple[GuestChange, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Ask with another client about the next guest."""
        self._client = conf.client

    def report(self, change: GuestChange) -> None:
        """Take a change; for the driver's threads."""
        self._changes.put((change, time.monotonic()))

    def stop(self, timeout: float = 2.0) -> None:
        """Hand over what there is, then end; a request that hangs is not waited for longer than that."""
        self._changes.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._changes.get()) is not None:
            try:
                event = self._event(*item)
                handled = self._pipeline.submit(event)
                if _is_for_reports(event):
                    handled.add_done_callback(lambda _: self._missed())
            except Exception:
                LOG.exception("A change of guest %s could not be handed over", item[0].guest)

    def _event(self, change: GuestChange, since: float) -> Event:
        guest = change.guest
        match change.kind:
            case ChangeKind.STOPPED:
                return GuestStopped(guest)
            case ChangeKind.CHANGED:
                return GuestStarted(guest, None, since=since)
            case ChangeKind.STARTED | ChangeKind.FOUND:
                started = change.kind is ChangeKind.STARTED
                as_of = time.monotonic()
                try:
                    held = self._client.allocations(guest.uuid).resources
                except PlacementError as error:
                    LOG.warning("What guest %s may use is not known yet: %s", guest, error)
                    return GuestStarted(guest, None, as_of, since, started)
                world = self._pipeline.world
                if not world.root_known:
                    return GuestStarted(guest, None, as_of, since, started)
                allocation = world.own_part(held)
                if not allocation and self._held_something(guest.uuid):
                    # The report judges whether that is so, or Placement has an older copy.
                    return GuestStarted(guest, None, as_of, since, started)
                if not started and not self._is_news(guest.uuid, allocation):
                    return GuestStarted(guest, None, as_of, since)
                return GuestStarted(guest, allocation, as_of, since, started)

    def _held_something(self, uuid: str) -> bool:
        """Whether a consumer held something here when Placement was last asked.

        That it holds nothing now may come from an older copy of Placement's database.
        """
        if uuid in self._pipeline.unclaimed:
            return True
        return any(view.guest.uuid == uuid and view.allocation for view in self._pipeline.views())

    def _is_news(self, uuid: str, allocation: Allocation) -> bool:
        """Whether what a guest that ran before holds by itself tells what it may use.

        It does not if the guest held something else before: that may have gone to its migration, and who
        reads all allocations finds out.
        """
        return bool(allocation) and all(view.guest.uuid != uuid for view in self._pipeline.views())


def _is_for_reports(event: Event) -> bool:
    """Whether Placement was asked, and said too little, or that something is held.

    A report that comes soon learns the generations that belong to what is held: an older copy has others.
    """
    return isinstance(event, GuestStarted) and event.as_of > 0 and event.allocation != {}
