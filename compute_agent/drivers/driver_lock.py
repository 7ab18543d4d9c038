"""That no other agent looks after the same guests.

Two agents that do not know of each other give the same CPUs to different guests, and undo what the other one
did. So each takes a lock on what its guests depend on, in a folder that all agents of the host have in
common. A container has a folder of its own there; but where it reaches libvirtd, it sees the folder of
libvirtd's socket. A second lock is taken in that, if it is to be had.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent import locks
from compute_agent.files import UnsafeFileError, check_folder, secure_folder
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

_MARK: Final = "compute-agent.lock"


@dataclass(slots=True)
class DriverLock:
    """The locks of one agent on its guests.

    ``holder`` is what the next agent is told of this one; ``what`` it looks after and the ``remedy`` are
    words for a message. ``lock`` None: there is nothing to lock. ``mark`` is the lock that is taken where it
    can be.
    """

    holder: str
    what: str = ""
    remedy: str = ""
    lock: Path | None = None
    mark: Path | None = None
    _held: dict[Path, int] = field(default_factory=dict)

    def check(self) -> None:
        """Take the locks that are not held, or not any more.

        :raises DriverError: naming who has one.
        """
        if self.lock is None:
            return
        try:
            secure_folder(self.lock.parent)
            self._take(self.lock)
        except OSError as error:
            raise DriverError(
                f"the lock that keeps other agents from {self.what} cannot be had: {error}; set [DEFAULT]"
                " lock_path to a folder that this agent can write to"
            ) from error
        if self.mark is not None:
            try:
                check_folder(self.mark.parent)
                self._take(self.mark)
            except UnsafeFileError as error:
                LOG.warning("No lock is taken in %s: %s", self.mark.parent, error)
            except OSError as error:
                LOG.debug("No lock is taken in %s: %s", self.mark.parent, error)

    def release(self) -> None:
        """Let go of the locks."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _take(self, path: Path) -> None:
        held = self._held.get(path)
        if held is not None and locks.is_held(path, held):
            return
        try:
            fresh = locks.hold(path, self.holder)
        except locks.LockedError as error:
            raise DriverError(
                f"another agent ({error}) looks after {self.what}: stop one of the two, or {self.remedy}"
            ) from error
        if held is not None:
            os.close(held)
        self._held[path] = fresh


def libvirt_lock(conf: cfg.ConfigOpts, sockets: Sequence[Path], holder: str) -> DriverLock:
    """The lock on the domains of ``[libvirt] uri``, with the sockets that it may have on this host."""
    uri = conf.libvirt.uri
    folder = sockets[0].parent if sockets else None
    return DriverLock(
        holder,
        f"the domains of {uri}",
        "give this one another [libvirt] uri",
        lock_path(conf) / _name("libvirt", uri if folder is None else os.path.realpath(folder)),
        None if folder is None else folder / _MARK,
    )


def cgroup_lock(conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    """The lock on the groups below ``[cgroup] root``."""
    root = conf.cgroup.root
    return DriverLock(
        holder,
        f"the guests below {root}",
        "give this one another [cgroup] root",
        lock_path(conf) / _name("cgroup", os.path.realpath(root)),
    )


def lock_path(conf: cfg.ConfigOpts) -> Path:
    """Where the locks are that all agents have in common, as far as they may."""
    if conf.lock_path:
        return Path(conf.lock_path)
    if os.geteuid() == 0:
        return Path("/run/compute-agent")
    with contextlib.suppress(KeyError):
        return Path(os.environ["XDG_RUNTIME_DIR"]) / "compute-agent"
    return Path(f"/tmp/compute-agent-{os.geteuid()}")


def _name(kind: str, claimed: str) -> str:
    return f"{kind}-{hashlib.sha256(os.fsencode(claimed)).hexdigest()[:16]}.lock"
