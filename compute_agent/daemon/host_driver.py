"""The driver of this host: chosen, claimed, opened and remembered; and what an operator should know of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

from compute_agent.drivers.base import GuestDriver
from compute_agent.drivers.factory import DriverLock, choose, libvirtd_is_usable, lock_for, open_driver
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostDriver:
    """A driver that nobody else has.

    ``notice`` is how it was chosen, if that is worth a word.
    """

    driver: GuestDriver
    lock: DriverLock
    notice: str

    @property
    def status(self) -> str:
        """Whether what the guests depend on can be asked, and why not."""
        return f"away: {outage}" if (outage := self.driver.outage) else "up"

    def close(self) -> None:
        """Let go of everything but the guests."""
        self.driver.close()
        self.lock.release()


def open_host_driver(
    conf: cfg.ConfigOpts, state: StateFile, folder: Path, holder: str, metrics: AgentMetrics
) -> HostDriver:
    """The driver of this host.

    Process guests are recorded in ``folder``; ``holder`` is what other agents are told of this one.

    :raises DriverError: also if another agent has the guests.
    :raises OSError:
    """
    last = state.state
    choice = choose(conf.guests.driver, libvirtd_is_usable(conf.libvirt.uri), last.driver, len(last.guests))
    LOG.info("Guests are those of driver %s", choice.name)
    if choice.notice:
        LOG.warning("%s", choice.notice)
    lock = lock_for(choice.name, conf, holder)
    try:
        driver = open_driver(choice.name, conf, folder, lock)
    except BaseException:
        lock.release()
        raise
    try:
        state.keep_driver(choice.name)
    except OSError as error:
        LOG.error("The driver cannot be remembered: %s; will be tried again with the next guest", error)
        metrics.state_failures.inc()
    metrics.driver_up.set_function(lambda: not driver.outage)
    return HostDriver(driver, lock, choice.notice)
