"""Releasing a host from outside of the daemon, which has to have ended: two must not act at once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.conf.guests import FOLLOW
from compute_agent.controllers.cpu_class import KernelFiles
from compute_agent.daemon.cache_control import open_resctrl
from compute_agent.daemon.host_driver import open_host_driver
from compute_agent.daemon.release import HostRelease, ReleaseOptions
from compute_agent.daemon.state_folder import GUESTS_FOLDER, STATE_FILE, make_state_folder
from compute_agent.daemon.world import policy_of
from compute_agent.host.reader import read_topology
from compute_agent.inventory import provider_tree
from compute_agent.locks import LockedError
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile, lock_state_folder
from compute_agent.report.client import PlacementClient
from compute_agent.report.root_provider import owner_of

_POLL_SECONDS: Final = 0.1


@contextlib.contextmanager
def open_release(conf: cfg.ConfigOpts, options: ReleaseOptions, lock_timeout: float) -> Iterator[HostRelease]:
    """The release of this host, as long as no agent works on its state folder.

    One that ends is waited for, ``lock_timeout`` seconds at most.

    :raises ConfigError:
    :raises LockedError:
    :raises IdentityError:
    :raises DriverError:
    :raises PlacementError:
    :raises OSError:
    """
    folder = make_state_folder(conf)
    lock = _wait_for_lock(folder, lock_timeout)
    try:
        state = StateFile(folder / STATE_FILE)
        holder = f"compute-agent release, pid {os.getpid()}"
        opened = open_host_driver(conf, state, folder / GUESTS_FOLDER, holder, AgentMetrics())
        try:
            owner = owner_of(conf.compute.provider_tree, state.state.nova_root)
            own = provider_tree.load_or_create(folder)
            yield HostRelease(
                opened.driver,
                open_resctrl(conf).control,
                PlacementClient.from_conf(conf),
                state,
                own if owner.novas is None else owner.novas.uuid,
                read_topology(Path(conf.host.root)).online,
                replace(options, given=policy_of(conf, owner.beside) == FOLLOW),
                owner.beside,
                KernelFiles(Path(conf.host.root)),
            )
        finally:
            opened.close()
    finally:
        os.close(lock)


def _wait_for_lock(folder: Path, lock_timeout: float) -> int:
    deadline = time.monotonic() + lock_timeout
    while True:
        try:
            return lock_state_folder(folder)
        except LockedError as error:
            if time.monotonic() >= deadline:
                raise LockedError(f"{error}: end it (systemctl stop compute-agent), and try again") from error
        time.sleep(_POLL_SECONDS)
