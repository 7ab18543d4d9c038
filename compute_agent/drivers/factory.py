"""Chooses the drivers of this host, locks their guests against other agents, and opens them.

Without ``[guests] drivers``, the agent uses libvirt if libvirtd is available. libvirtd may be down when the
agent starts, and the agent must still manage the running domains later. So a host that had domains keeps the
driver libvirt, and a host with process guests keeps the driver process, until an operator changes the option.

Two agents on one host would give the same CPUs to different guests and undo each other's changes. So each
agent locks the libvirtd or the cgroup of its guests, with a file in a folder that all agents of the host
share. An agent in a container has a private folder for locks, but it sees the folder of libvirtd's socket. So
the agent takes a second lock in that folder, if the agent can write there and no other user can.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from oslo_config import cfg

from compute_agent.drivers.base import GuestDriver, join_names, split_names
from compute_agent.drivers.cgroup import CgroupRoot, offered_controllers
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.drivers.containers.driver import DOCKER, PODMAN, ContainerDriver
from compute_agent.drivers.foreign.driver import ForeignDriver
from compute_agent.drivers.foreign.editor import HostFolders
from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.drivers.systemd.driver import SystemdDriver
from compute_agent.files import LockedError, UnsafeFileError, check_folder, hold_lock, is_held, secure_folder
from compute_agent.model.messages import DriverError

_SYSTEM_FOLDER: Final = Path("/run/libvirt")
# The sockets of libvirtd, the one daemon for all hypervisors, and of virtqemud, the modular daemon for QEMU.
_SOCKETS: Final = ("libvirt-sock", "virtqemud-sock")


def socket_paths(uri: str) -> tuple[Path, ...]:
    """The possible paths of the UNIX socket of the libvirtd with this URI; empty for a URI of another form.

    https://libvirt.org/uri.html describes the URIs. A URI of another host has no such socket.
    """
    try:
        parts = urlsplit(uri)
    # urlsplit() raises ValueError for a host in brackets that is not an IPv6 address.
    except ValueError:
        return ()
    _, _, transport = parts.scheme.partition("+")
    if parts.netloc or transport not in ("", "unix"):
        return ()
    if named := parse_qs(parts.query).get("socket"):
        # libvirt uses the last of several parameters with the same name.
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

SETTLE_SECONDS: Final = 10.0
"""Seconds after the start of a unit in which it gets no claim, if the agent also has a driver of containers.

A service that runs a container is a guest until its container exists, which mostly takes a second or two. In
this time it would take the room of its own container.
"""

# The file of the second lock, in the folder of libvirtd's socket.
_MARK: Final = "compute-agent.lock"


@dataclass(slots=True)
class DriverLock:
    """The locks by which one agent excludes other agents from its guests.

    :ivar holder: the name of this agent, for the error message of a second agent that finds the lock taken.
    :ivar what: the words for the locked guests in that error message.
    :ivar remedy: the words in that error message for the option that gives the two agents different guests.
    :ivar lock: the file of the lock; None means that there is nothing to lock.
    :ivar mark: the file of a second lock, in the folder of libvirtd's socket; None means that no second lock
        is needed. If the agent cannot take the second lock there, it continues without this lock.
    """

    holder: str
    what: str = ""
    remedy: str = ""
    lock: Path | None = None
    mark: Path | None = None
    _held: dict[Path, int] = field(default_factory=dict)

    def check_locks(self) -> None:
        """Take each lock that this agent does not hold yet, and take a lock again if its file was removed.

        :raises DriverError: another agent holds a lock, or the lock file cannot be made.
        """
        if self.lock is None:
            return
        try:
            secure_folder(self.lock.parent)
            self._take_lock(self.lock)
        except OSError as error:
            raise DriverError(
                f"the lock that keeps other agents from {self.what} cannot be taken: {error}; set"
                " [DEFAULT] lock_path to a folder that this agent can write to"
            ) from error
        # The second lock is a precaution for containers. A folder of libvirtd that is absent, read-only or
        # writable by others is not a reason to stop an agent that has the first lock.
        if self.mark is not None:
            try:
                check_folder(self.mark.parent)
                self._take_lock(self.mark)
            except UnsafeFileError as error:
                # Another user could replace the file and lock the agent out.
                LOG.warning(
                    "The agent cannot take its second lock against other agents in %s, and continues without"
                    " it: %s",
                    self.mark.parent,
                    error,
                )
            except OSError as error:
                LOG.debug(
                    "The agent cannot take its second lock against other agents in %s, and continues without"
                    " it: %s",
                    self.mark.parent,
                    error,
                )

    def release(self) -> None:
        """Release the locks, but keep their files: without a file, two agents could lock two new files."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _take_lock(self, path: Path) -> None:
        held = self._held.get(path)
        if held is not None and is_held(path, held):
            return
        try:
            fresh = hold_lock(path, self.holder)
        except LockedError as error:
            raise DriverError(
                f"another agent ({error}) already manages {self.what}: stop one of the two, or {self.remedy}"
            ) from error
        # The descriptor of a removed file is closed last, so that the old lock stays if the code above fails.
        if held is not None:
            os.close(held)
        self._held[path] = fresh


def libvirt_lock(conf: cfg.ConfigOpts, sockets: Sequence[Path], holder: str) -> DriverLock:
    """The lock on the domains of the libvirtd at ``[libvirt] uri``.

    :param sockets: the possible paths of libvirtd's socket on this host.
    """
    uri = conf.libvirt.uri
    folder = sockets[0].parent if sockets else None
    return DriverLock(
        holder,
        f"the domains of {uri}",
        "give this one another [libvirt] uri",
        # The lock is named after the folder of the socket, because several URIs lead to the same libvirtd.
        lock_path(conf) / _name("libvirt", uri if folder is None else os.path.realpath(folder)),
        None if folder is None else folder / _MARK,
    )


def cgroup_lock(conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    """The lock on the groups below ``[cgroup] root``."""
    # Process guests without cgroups depend on the records in the state folder alone, which has its own lock.
    if not (root := conf.cgroup.root):
        return DriverLock(holder)
    return DriverLock(
        holder,
        f"the guests below {root}",
        "give this one another [cgroup] root",
        lock_path(conf) / _name("cgroup", os.path.realpath(root)),
    )


def systemd_lock(conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    """The lock on the units of the systemd at ``[systemd] bus_socket``."""
    return DriverLock(
        holder,
        "the units of systemd",
        "remove systemd from [guests] drivers of this one",
        lock_path(conf) / _name("systemd", os.path.realpath(conf.systemd.bus_socket)),
    )


def engine_lock(engine: str, conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    """The lock on the containers of an engine; ``engine`` is the name of its driver."""
    return DriverLock(
        holder,
        f"the containers of {engine}",
        f"remove {engine} from [guests] drivers of this one",
        lock_path(conf) / _name(engine, os.path.realpath(conf[engine].socket)),
    )


def lock_path(conf: cfg.ConfigOpts) -> Path:
    """The folder of the lock files. All agents that run on this host as the same user share the folder."""
    if conf.lock_path:
        return Path(conf.lock_path)
    if os.geteuid() == 0:
        return Path("/run/compute-agent")
    with contextlib.suppress(KeyError):
        return Path(os.environ["XDG_RUNTIME_DIR"]) / "compute-agent"
    # A user without a session has no runtime folder. Every user can make a folder in /tmp, but
    # secure_folder() refuses the folder of another user.
    return Path(f"/tmp/compute-agent-{os.geteuid()}")


def _name(kind: str, claimed: str) -> str:
    # The name contains a digest, because a path or a URI can be longer than the 255 bytes of a file name.
    return f"{kind}-{hashlib.sha256(os.fsencode(claimed)).hexdigest()[:16]}.lock"


_LIBVIRT, _PROCESS = LibvirtDriver.name, ProcessDriver.name


@dataclass(frozen=True, slots=True)
class DriverChoice:
    """The chosen driver.

    :ivar name: the name of the driver, or of several drivers with commas between.
    :ivar notice: a message for the operator about an unusual choice; empty if the choice needs no
        explanation.
    """

    name: str
    notice: str = ""


def choose_driver(
    configured: Sequence[str] | None, usable: bool, remembered: str, guests: Mapping[str, int]
) -> DriverChoice:
    """Choose the driver to use.

    The host keeps the drivers that it had last, unless the option ``[guests] drivers`` names others. The
    agent changes from processes to domains only on a host without process guests.

    :param configured: ``[guests] drivers``; None if it is not set.
    :param usable: whether libvirtd is available.
    :param remembered: the name of the driver, or of the drivers, that this host had last; empty if not known.
    :param guests: the numbers of guests that the last drivers had, by the name of the driver. A number at the
        empty name belongs to ``remembered``.
    :raises DriverError: ``configured`` is empty, or has a name twice.
    """
    count = guests.get(remembered, 0) + guests.get("", 0)
    if configured is not None:
        chosen = join_names(_checked_names(configured))
        gone = [name for name in split_names(remembered) if name not in configured]
        if not gone:
            return DriverChoice(chosen)
        told = ", ".join(f"{name} ({count if name == remembered else guests.get(name, 0)})" for name in gone)
        return DriverChoice(
            chosen,
            f"The agent manages guests of driver {' and '.join(configured)} from now on, as [guests] drivers"
            f" says. Guests of driver {told} continue to run, but the agent no longer manages them,"
            " and `compute-agent audit` lists their allocations as allocations without a guest",
        )
    found = _LIBVIRT if usable else _PROCESS
    if remembered in ("", found):
        return DriverChoice(found)
    if remembered == _LIBVIRT:
        return DriverChoice(
            _LIBVIRT,
            "libvirtd is not available, but the guests of this host are domains, so the driver stays"
            f" {_LIBVIRT} and waits for it. If they are to be processes from now on, set [guests] drivers ="
            f" {_PROCESS}",
        )
    if remembered != _PROCESS:
        # The agent had several drivers, or a later release chose the driver: open_drivers() raises an error
        # with the remedy.
        return DriverChoice(remembered)
    if count:
        return DriverChoice(
            _PROCESS,
            f"libvirtd is available, but the {count} guests of this host are processes, so the driver stays"
            f" {_PROCESS}. If they are to be domains from now on, set [guests] drivers = {_LIBVIRT}",
        )
    return DriverChoice(
        _LIBVIRT,
        "Guests are domains from now on, because libvirtd is available and no process guest was left. If"
        " they"
        f" are to be processes, set [guests] drivers = {_PROCESS}",
    )


def count_guests(drivers: Iterable[str]) -> Mapping[str, int]:
    """Count guests by driver for :func:`choose_driver`; ``drivers`` has one name for each guest."""
    return Counter(drivers)


def _checked_names(names: Sequence[str]) -> Sequence[str]:
    if not names:
        raise DriverError(f"[guests] drivers names no driver: set it to {' or '.join(KINDS)}, or remove it")
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DriverError(f"[guests] drivers names {twice[0]} twice: remove one of the two")
    return names


def libvirtd_is_usable(uri: str) -> bool:
    """Whether libvirt-python is installed, and a libvirtd of this URI has its socket on this host."""
    # find_spec() is used instead of an import, because the package is imported only when the driver is
    # opened.
    return importlib.util.find_spec("libvirt") is not None and any(map(Path.exists, socket_paths(uri)))


@dataclass(frozen=True, slots=True)
class DriverKind:
    """The functions that lock the guests of a driver, open the driver, and say whether it can limit guests.

    :ivar lock: the function that makes the lock on the guests, from the options and the name of the agent.
    :ivar open: the function that makes the driver from the options, the folder of records, the lock and the
        name of the host's resource provider. Without a lock the driver only reads.
    :ivar unlimited_reason: the reason why the CPU use of guests cannot be limited; empty if it can be.
    """

    name: str
    lock: Callable[[cfg.ConfigOpts, str], DriverLock]
    open: Callable[[cfg.ConfigOpts, Path, DriverLock | None, str], GuestDriver]
    unlimited_reason: Callable[[cfg.ConfigOpts], str]


def lock_for(name: str, conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    """The lock on the guests of the named driver.

    :param holder: the name of this agent, for the error message of a second agent.
    :raises DriverError: there is no driver of that name.
    """
    return _find_kind(name).lock(conf, holder)


def open_driver(
    name: str, conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None, host: str = ""
) -> GuestDriver:
    """Open the driver with this name.

    :param folder: the folder with the records of process guests.
    :param lock: the lock on the guests; None means that the driver only reads, as in a dry run.
    :param host: the name of the host's resource provider.
    :raises DriverError: the driver is not available, or another agent holds the lock on its guests.
    :raises OSError: the folder of records cannot be used.
    """
    kind = _find_kind(name)
    # The lock is checked before the driver is opened: an opened driver takes over guests, which perhaps
    # belong to another agent.
    _lock_check(lock)()
    return kind.open(conf, folder, lock, host)


def open_drivers(
    conf: cfg.ConfigOpts, folder: Path, locks: Mapping[str, DriverLock | None], host: str = ""
) -> GuestDriver:
    """Open one driver, or several drivers that act as one.

    :param folder: the folder with the records of process guests.
    :param locks: the lock on the guests of each driver, by the name of the driver in the order of the
        drivers; None means that the driver only reads.
    :param host: the name of the host's resource provider, from which the driver systemd derives uuids.
    :raises DriverError: a driver is not available, or another agent holds the lock on its guests.
    :raises OSError: the folder of records cannot be used.
    """
    with contextlib.ExitStack() as undo:
        opened = []
        for name, lock in locks.items():
            opened.append(open_driver(name, conf, folder, lock, host))
            undo.callback(opened[-1].close)
        undo.pop_all()
    if len(opened) == 1:
        return opened[0]
    combined = CombinedDriver(opened, _groups_folder(conf))
    _assign_groups(combined)
    return combined


def _assign_groups(combined: CombinedDriver) -> None:
    """Make the driver of units exclude each unit that contains a guest of another driver."""
    for driver in combined.drivers:
        if isinstance(driver, SystemdDriver):
            for engine in combined.drivers:
                if isinstance(engine, ContainerDriver):
                    engine.announce_start = driver.leave_service
                    driver.settle_seconds = SETTLE_SECONDS
            driver.leave_groups(functools.partial(combined.overruling_guests, driver.name))


def foreign_drivers(driver: GuestDriver) -> Mapping[str, ForeignDriver]:
    """The drivers of units and containers, which other programs start, by the name of the driver."""
    drivers = driver.drivers if isinstance(driver, CombinedDriver) else (driver,)
    return {one.name: one for one in drivers if isinstance(one, ForeignDriver)}


def unlimited_reason(name: str, conf: cfg.ConfigOpts) -> str:
    """The reason why the agent cannot limit the CPU use of any guest; empty if it can limit some guests.

    :param name: the name of the driver, or of several drivers with commas between.
    """
    reasons = [KINDS[one].unlimited_reason(conf) if one in KINDS else "" for one in split_names(name)]
    return "; ".join(reasons) if all(reasons) else ""


def _groups_folder(conf: cfg.ConfigOpts) -> Path:
    """The folder of the root of all cgroup v2 groups."""
    return Path(conf.host.root) / "sys/fs/cgroup"


def _find_kind(name: str) -> DriverKind:
    if name not in KINDS:
        raise DriverError(f"there is no driver {name!r}: set [guests] drivers to {' or '.join(KINDS)}")
    return KINDS[name]


def _lock_check(lock: DriverLock | None) -> Callable[[], None]:
    # A DriverLock without a file checks nothing, which suits a driver that only reads.
    return DriverLock("").check_locks if lock is None else lock.check_locks


def _lock_domains(conf: cfg.ConfigOpts, holder: str) -> DriverLock:
    return libvirt_lock(conf, socket_paths(conf.libvirt.uri), holder)


def _open_libvirt(conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None, host: str) -> GuestDriver:
    records = ValueRecords(folder.with_name("domains"), "domain", lock is None)
    return LibvirtDriver(conf.libvirt.uri, conf.guests.reconcile_interval, _lock_check(lock), records=records)


def _open_processes(conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None, host: str) -> GuestDriver:
    look_only = lock is None
    # Opening the delegated group enables controllers, and a dry run must change nothing.
    groups = CgroupRoot.open(Path(conf.cgroup.root)) if conf.cgroup.root and not look_only else None
    return ProcessDriver(folder, groups, look_only)


def _open_systemd(conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None, host: str) -> GuestDriver:
    look_only = lock is None
    # The folder of these records is in the state folder, next to the folder with the records of process
    # guests.
    records = ValueRecords(folder.with_name("units"), "unit", look_only)
    root = Path(conf.host.root)
    return SystemdDriver(
        Path(conf.systemd.bus_socket),
        host,
        records,
        HostFolders(root, _groups_folder(conf), root / "run/systemd"),
        conf.guests.reconcile_interval,
        _lock_check(lock),
        look_only,
        guest_names=conf.systemd.guest_names,
    )


def _open_engine(
    engine: str, conf: cfg.ConfigOpts, folder: Path, lock: DriverLock | None, host: str
) -> GuestDriver:
    look_only = lock is None
    return ContainerDriver(
        engine,
        Path(conf[engine].socket),
        host,
        ValueRecords(folder.with_name(engine), "container", look_only),
        HostFolders(Path(conf.host.root), _groups_folder(conf)),
        conf.guests.reconcile_interval,
        _lock_check(lock),
        look_only,
        guest_names=conf[engine].guest_names,
        whole_pods=engine == PODMAN and conf.podman.pods == "pod",
    )


def _engine_kind(engine: str) -> DriverKind:
    lock, open_engine = functools.partial(engine_lock, engine), functools.partial(_open_engine, engine)
    return DriverKind(engine, lock, open_engine, _groups_unlimited)


def _groups_unlimited(conf: cfg.ConfigOpts) -> str:
    groups = _groups_folder(conf)
    return "" if (groups / "cgroup.controllers").exists() else f"{groups} is not a group of cgroup v2"


def limits_fault(conf: cfg.ConfigOpts) -> str:
    """The reason why process guests have no weights and no CPU limits; empty if they have them."""
    root = conf.cgroup.root
    if not root:
        return "[cgroup] root is not set"
    try:
        if "cpu" in offered_controllers(Path(root)):
            return ""
    except OSError as error:
        reason = error.strerror or error
        return f"[cgroup] root = {root} is not a group of cgroup v2 that the agent can use ({reason})"
    return f"[cgroup] root = {root} does not have the controller cpu"


def _processes_unlimited(conf: cfg.ConfigOpts) -> str:
    fault = limits_fault(conf)
    return f"process guests without groups of their own cannot be limited: {fault}" if fault else ""


KINDS: Final[Mapping[str, DriverKind]] = {
    kind.name: kind
    for kind in (
        DriverKind(_LIBVIRT, _lock_domains, _open_libvirt, lambda conf: ""),
        DriverKind(_PROCESS, cgroup_lock, _open_processes, _processes_unlimited),
        DriverKind(SystemdDriver.name, systemd_lock, _open_systemd, _groups_unlimited),
        _engine_kind(PODMAN),
        _engine_kind(DOCKER),
    )
}
"""All drivers by their names in ``[guests] drivers``."""
