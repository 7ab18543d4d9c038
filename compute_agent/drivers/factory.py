"""The driver of this host: which one it is, the lock that keeps other agents away, and opening it.

Without an option the driver is libvirt where libvirtd is available. But guests that run must not be
forgotten because libvirtd is away when the agent starts: a host that had domains keeps that driver, and so
does one with processes, until an operator changes it.

Two agents that do not know of each other would give the same CPUs to different guests and undo each other's
work. So each locks what its guests depend on, in a folder that all agents of the host share. A container
has a folder of its own there; but where it reaches libvirtd, it sees the folder of libvirtd's socket, and a
second lock is taken in that if possible.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from oslo_config import cfg

from compute_agent import locks
from compute_agent.drivers.base import GuestDriver
from compute_agent.drivers.cgroup import CgroupRoot
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.files import UnsafeFileError, check_folder, secure_folder
from compute_agent.host import kernel_files
from compute_agent.model.messages import DriverError

_SYSTEM_FOLDER: Final = Path("/run/libvirt")
_SOCKETS: Final = ("libvirt-sock", "virtqemud-sock")
"""Of the one daemon for everything, and of the one for QEMU alone."""


def sockets(uri: str) -> tuple[Path, ...]:
    """The UNIX sockets on which libvirtd may be found; none if the URI leads elsewhere."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ()
    _, _, transport = parts.scheme.partition("+")
    if parts.netloc or transport not in ("", "unix"):
        return ()
    if named := parse_qs(parts.query).get("socket"):
        return (Path(named[-1]),)
    match parts.path:
        case "/system":
            folder = _SYSTEM_FOLDER
        case "/session":
            runtime = os.environ.get("XDG_RUNTIME_DIR")
            folder = (Path(runtime) if runtime else Path.home() / ".cache") / "libvirt"
        case _:
            return ()
    return tuple(folder / name for name in _SOCKETS)


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
            fresh = locks.hold_lock(path, self.holder)
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


_LIBVIRT, _PROCESS = LibvirtDriver.name, ProcessDriver.name


@dataclass(frozen=True, slots=True)
class DriverChoice:
    """The name of a driver, and what an operator should know about how it was chosen (empty: nothing)."""

    name: str
    notice: str = ""


def choose(configured: str | None, usable: bool, remembered: str, guests: int) -> DriverChoice:
    """The driver to use: ``configured`` is that of the options, ``usable`` whether libvirtd can be had.

    ``remembered`` is the driver that this host had last (empty: none is known), with so many ``guests``. It
    stays unless the option says otherwise; only a host without process guests may come to have domains by
    itself.
    """
    if configured is not None:
        if remembered in ("", configured):
            return DriverChoice(configured)
        return DriverChoice(
            configured,
            f"Guests are those of driver {configured} from now on, as [guests] driver says. The {guests} of"
            f" driver {remembered} run on where they are, but are not looked after any more, and audit shows"
            " what they hold as allocations without guest",
        )
    found = _LIBVIRT if usable else _PROCESS
    if remembered in ("", found):
        return DriverChoice(found)
    if remembered == _LIBVIRT:
        return DriverChoice(
            _LIBVIRT,
            "libvirtd cannot be had, but the guests of this host are domains, and so the driver stays"
            f" {_LIBVIRT} and waits for it. If they are to be processes from now on, set [guests] driver ="
            f" {_PROCESS}",
        )
    if remembered != _PROCESS:
        return DriverChoice(remembered)  # a newer version may have had it; opening it says what to do
    if guests:
        return DriverChoice(
            _PROCESS,
            f"libvirtd is here, but the {guests} guests of this host are processes, and so the driver stays"
            f" {_PROCESS}. If they are to be domains from now on, set [guests] driver = {_LIBVIRT}",
        )
    return DriverChoice(
        _LIBVIRT,
        f"Guests are domains from now on, as libvirtd is here and there was no process guest left. If they"
        f" are to be processes, set [guests] driver = {_PROCESS}",
    )


def libvirtd_is_usable(uri: str) -> bool:
    """Whether libvirt-python is installed and the libvirtd with this URI has its socket on this host."""
    return importlib.util.find_spec("libvirt") is not None and any(map(Path.exists, sockets(uri)))


@dataclass(frozen=True, slots=True)
class DriverKind:
    """What has to be known of a driver before it is opened.

    ``lock`` is that of an agent, which calls itself by a text, on the guests; ``open`` makes the driver from
    the options, the folder of records and the lock (None: it changes nothing as long as it is not told to);
    ``unlimited`` says why the CPU use of guests cannot be limited, empty if it can.
    """

    name: str
    lock: Callable[[cfg.ConfigOpts, str], DriverLock]
    open: Callable[[cfg.ConfigOpts, Path, DriverLock | None], GuestDriver]
    unlimited: Callable[[cfg.ConfigOpts], str]


def lock_for(name: str, conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    """The lock of an agent, which calls itself ``holder``, on the guests of the driver of that name.

    :raises DriverError: there is none.
    """
    return _kind(name).lock(conf, holder)


def open_driver(name: str, conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None) -> GuestDriver:
    """The driver of that name.

    Process guests are recorded in ``folder``. Without a ``lock`` on them it changes nothing as long as it is
    not told to.

    :raises DriverError: for one that cannot be had, and if another agent has its guests.
    :raises OSError:
    """
    kind = _kind(name)
    _checked(lock)()
    return kind.open(conf, folder, lock)


def unlimited(name: str, conf: cfg.ConfigOpts) -> str:
    """Why the CPU use of guests of that driver cannot be limited here; empty if it can, or nobody knows."""
    return KINDS[name].unlimited(conf) if name in KINDS else ""


def _kind(name: str) -> DriverKind:
    if name not in KINDS:
        raise DriverError(f"there is no driver {name!r}: set [guests] driver to {' or '.join(KINDS)}")
    return KINDS[name]


def _checked(lock: DriverLock | None) -> Callable[[], None]:
    return DriverLock("").check if lock is None else lock.check


def _lock_domains(conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    return libvirt_lock(conf, sockets(conf.libvirt.uri), holder)


def _open_libvirt(conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None) -> GuestDriver:
    return LibvirtDriver(conf.libvirt.uri, conf.guests.reconcile_interval, _checked(lock))


def _lock_processes(conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    # Process guests without groups are known by their records, which are in the state folder.
    return cgroup_lock(conf, holder) if conf.cgroup.root else DriverLock(holder)


def _open_processes(conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None) -> GuestDriver:
    look_only = lock is None
    groups = CgroupRoot.open(Path(conf.cgroup.root)) if conf.cgroup.root and not look_only else None
    return ProcessDriver(folder, groups, look_only)


def _processes_unlimited(conf: cfg.ConfigOpts) -> str:
    reason = _without_groups(conf.cgroup.root)
    return f"process guests without groups of their own cannot be limited: {reason}" if reason else ""


def _without_groups(root: str | None) -> str:
    """Why process guests have no groups with a quota; empty if they have."""
    if not root:
        return "[cgroup] root is not set"
    try:
        controllers = kernel_files.read_text(str(Path(root) / "cgroup.controllers")).split()
    except OSError as error:
        return f"[cgroup] root = {root} is no group of cgroup v2 ({error.strerror})"
    return "" if "cpu" in controllers else f"[cgroup] root = {root} has not the controller cpu"


KINDS: Final[Mapping[str, DriverKind]] = {
    kind.name: kind
    for kind in (
        DriverKind(_LIBVIRT, _lock_domains, _open_libvirt, lambda conf: ""),
        DriverKind(_PROCESS, _lock_processes, _open_processes, _processes_unlimited),
    )
}
"""By the name that ``[guests] driver`` knows them under."""
