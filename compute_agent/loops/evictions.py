"""Evictions: stops guests, sees that they have ended, and gives their allocations back."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from compute_agent.drivers.base import RunningGuests
from compute_agent.loops.base import ReloadedConfiguration
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import GuestStopped
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.qos.evictor import EvictionFailedError
from compute_agent.qos.guest_command import CommandFailedError
from compute_agent.qos.settings import QosSettings
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient

LOG = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 50.0
_POLL_SECONDS: Final = 0.1

_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 60.0


class GuestEvictions:
    """Stops guests and gives back what they hold. For several threads, which may wait here for long."""

    def __init__(
        self,
        settings: QosSettings,
        pipeline: GuestPipeline,
        driver: RunningGuests,
        client: PlacementClient,
    ) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._driver = driver
        self._client = client
        self._ended = threading.Event()
        self._called: dict[str, str] = {}
        """What the log calls guests, also when they are gone."""

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go by another configuration with the next guest, and the next attempt to give back."""
        self._settings, self._client = conf.settings, conf.client

    def end(self) -> None:
        """Wait for nothing any more. The next agent goes on."""
        self._ended.set()

    def stop(self, uuid: str) -> None:
        """Make a guest leave, and see that it has left; one that runs no more is no error.

        :raises EvictionFailedError:
        :raises CommandFailedError:
        :raises DriverError:
        """
        guest = self._running(uuid)
        if guest is None:
            return
        self._called[uuid] = str(guest)
        try:
            self._ask_to_leave(guest)
        except (DriverError, CommandFailedError) as error:
            if self._runs(guest):
                raise
            LOG.info("Guest %s has left, though: %s", guest, error)
        deadline = time.monotonic() + self._settings.evict_grace
        while self._runs(guest):
            if time.monotonic() >= deadline:
                raise EvictionFailedError("it still runs, though it was told to leave")
            self._wait(_POLL_SECONDS)
        # The driver tells it as well, some time later.
        with contextlib.suppress(FutureTimeoutError):
            self._pipeline.submit(GuestStopped(guest)).result(_ANSWER_SECONDS)

    def give_back(self, uuid: str) -> None:
        """Take this host's part of a guest's allocation from it.

        What it holds elsewhere, such as shared disk, stays. Tries until Placement takes it, or the agent
        ends.

        :raises EvictionFailedError: it was not to be done.
        """
        pause, logged = _FIRST_PAUSE, ""
        name = self._called.pop(uuid, uuid)
        while self._running(uuid) is None:
            try:
                self._give_back(uuid, name)
                return
            except PlacementError as error:
                if str(error) != logged:
                    logged = str(error)
                    LOG.warning("What guest %s held is not given back yet: %s", name, logged)
            self._wait(pause)
            pause = min(2 * pause, _MAX_PAUSE)
        LOG.warning("Guest %s was started again: it keeps its allocation", name)

    def _ask_to_leave(self, guest: Guest) -> None:
        settings = self._settings
        if settings.evict_command is None:
            self._driver.stop(guest, settings.evict_grace)
        else:
            settings.evict_command(guest.uuid)

    def _give_back(self, uuid: str, name: str) -> None:
        client = self._client
        held = client.allocations(uuid)
        ours = self._pipeline.world.own_part(held.resources)
        if not ours:
            return
        if self._pipeline.world.tree.beside:
            LOG.info("Guest %s keeps its allocation: that is Nova's, as the guest is", name)
            return
        # With the generation even where nothing is left: a claim made meanwhile, on another host, must stay.
        client.set_allocations(held.without(ours))
        LOG.info("Guest %s gave back %s", name, self._pipeline.world.in_words(ours))

    def _wait(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise EvictionFailedError("the agent ends")

    def _runs(self, guest: Guest) -> bool:
        """Whether this very guest runs, not another one of its consumer."""
        now = self._running(guest.uuid)
        return now is not None and now.pid == guest.pid

    def _running(self, uuid: str) -> Guest | None:
        return next((one for one in self._driver.guests() if one.uuid == uuid), None)
