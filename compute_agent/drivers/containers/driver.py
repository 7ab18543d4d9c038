"""The driver of guests that are containers of Podman or Docker, and the editor of their control groups.

The agent writes CPUs, memory nodes, weights and limits to the control group of a container or pod, without
help of the engine.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings, MemoryLimits, QuotaError
from compute_agent.drivers.cgroup import IDLE, GuestCgroup, group_at
from compute_agent.drivers.containers.container_state import PodRun, own_group, parse_run
from compute_agent.drivers.containers.engine import CALL_SECONDS, ContainerEngine
from compute_agent.drivers.containers.table import CONTAINER, POD, ContainerTable, run_of
from compute_agent.drivers.foreign.driver import KILL_SECONDS, ForeignDriver
from compute_agent.drivers.foreign.editor import HostFolders, ValueEditor, read_texts
from compute_agent.drivers.foreign.kernel_values import FILES, Texts, file_writes, read_values
from compute_agent.drivers.foreign.records import ValueRecord, ValueRecords
from compute_agent.drivers.foreign.values import (
    BURST,
    CPUS,
    IO_WEIGHT,
    LATENCY,
    NODES,
    OOM_GROUP,
    PAGE_LIMITS,
    QUOTA,
    RATES,
    USUAL_NAMES,
    DeviceLimits,
    GoalChoice,
    Values,
)
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)


class ContainerEditor(ValueEditor):
    """Compares and writes the files of containers' groups. Any thread is allowed to call the methods."""

    subject = "container"

    def _run_of(self, guest: Guest) -> str:
        main = procfs.identify_recent(guest.pid)
        if main is None:
            raise GuestGoneError(f"guest {guest} has ended")
        return str(run_of(guest, main, self._folders.groups))

    def _read_values(self, guest: Guest, texts: Texts) -> Values:
        try:
            return read_values(texts)
        except ValueError as error:
            raise DriverError(f"the control group of guest {guest} cannot be read: {error}") from error

    def _write_values(self, guest: Guest, writes: Values) -> None:
        group = group_at(guest.cgroup)
        self._write_files(group, writes, f"guest {guest}")
        if left := self._differing_files(writes, read_texts(group, USUAL_NAMES | writes.keys())):
            raise DriverError(f"guest {guest}: the kernel did not accept {', '.join(sorted(left))}")

    def _restore_values(self, record: ValueRecord) -> None:
        try:
            run = parse_run(record.run)
        except ValueError as error:
            raise DriverError(str(error)) from error
        if isinstance(run, PodRun):
            group = run.group
        else:
            # The identity is checked, because a process with the pid of the former main process may belong to
            # another container.
            found = own_group(procfs.cgroup_path(run.main.pid), run.key)
            group = found if procfs.is_alive(run.main) else ""
        if group:
            cgroup = GuestCgroup(self._folders.groups / group.strip("/"))
            # The group of a stopped pod may have lost a controller, and with it the controller's files. The
            # kernel has forgotten the limits of devices that are gone, and refuses them (ENODEV).
            there = self._folders.block_devices
            values = {
                name: value.keep_devices(there) if isinstance(value, DeviceLimits) else value
                for name, value in record.values.items()
                if cgroup.has_file(FILES[name])
            }
            self._write_files(cgroup, values, f"container {record.name}")

    def _write_files(self, group: GuestCgroup, writes: Values, subject: str) -> None:
        # For a group without processes, the kernel accepts an empty set. Such a set also includes CPUs that
        # the host gets later.
        empty = {CPUS: frozenset[int](), NODES: frozenset[int]()}
        whole = self._folders.whole_sets if group.process_ids() else empty
        try:
            for file, text in file_writes(writes, read_texts(group, USUAL_NAMES | writes.keys()), whole):
                try:
                    group.write_file(file, text)
                except OSError as error:
                    # The group has ended with its container. A device that has gone is another reason for
                    # ENODEV, after which the values of other devices still have to be written.
                    if not group.folder.exists():
                        return
                    raise DriverError(f"{subject} cannot have {text!r} in {file}: {error}") from error
        finally:
            self._forget_reading()


PODMAN: Final = "podman"
DOCKER: Final = "docker"

ENGINES: Final[Mapping[str, str]] = {PODMAN: "Podman", DOCKER: "Docker"}
"""The names of engines for messages, by the names of their drivers in ``[guests] drivers``."""

CONTAINERS_THREAD: Final = ThreadSpec(
    "containers",
    "when Podman or Docker has an event of a container, and each [guests] reconcile_interval; 0.1 to 2 s"
    " while the engine does not answer",
    "keeps the table of containers, and reports those that start, end or change",
    "that of the table; that of changes of containers",
    "the engine over its socket; the queue of ``arrivals``",
)


class ContainerDriver(ForeignDriver):
    """The driver of guests that are containers of one engine."""

    def __init__(
        self,
        name: str,
        socket_path: Path,
        host: str,
        records: ValueRecords,
        folders: HostFolders | None = None,
        look_interval: float = 10.0,
        lock: Callable[[], None] = lambda: None,
        look_only: bool = False,
        seconds: float = CALL_SECONDS,
        guest_names: Collection[str] = (),
        whole_pods: bool = False,
    ) -> None:
        """Start the thread that connects and finds containers.

        :param name: the name of the driver, one of :data:`ENGINES`.
        :param socket_path: the UNIX socket of the engine.
        :param host: the name of the host's resource provider.
        :param records: the values that containers had before the agent changed them.
        :param seconds: the time limit of each call to the engine.
        :param guest_names: patterns for names; a container with a matching name is a guest even without the
            label.
        :param whole_pods: whether a pod with the label, or with a name that matches, is one guest.
        """
        self.name, self.peer_name = name, ENGINES[name]
        super().__init__(folders, look_interval, lock, look_only)
        self._peer = self._engine = ContainerEngine(
            self.peer_name, socket_path, self._hints.put, seconds, bool(guest_names), name == PODMAN
        )
        self._table = ContainerTable(
            name,
            self._engine,
            host,
            self._folders.groups,
            self._report_change,
            records,
            guest_names,
            whole_pods,
        )
        self._editor = ContainerEditor(records, self._folders)
        self._await_look(start_thread(CONTAINERS_THREAD, self._follow_peer))

    def subject_key(self, guest: Guest) -> str:
        """The id of the container; for a pod, the id of its infra container."""
        return guest.details[CONTAINER]

    def _begin_stop(self, guest: Guest, timeout: float) -> float:
        # The API counts whole seconds. The engine answers when the container has ended, if necessary by
        # force.
        container, whole = guest.details[CONTAINER], math.ceil(timeout)
        if pod := guest.details.get(POD):
            self._engine.stop_pod(pod, container, whole)
        else:
            self._engine.stop_container(container, whole)
        return KILL_SECONDS

    def _kill_processes(self, guest: Guest) -> None:
        if pod := guest.details.get(POD):
            self._engine.kill_pod(pod)
        else:
            self._engine.kill_container(guest.details[CONTAINER])

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Write ``cpuset.cpus`` of the group; see :meth:`ForeignDriver.apply_cpu_settings`."""
        if not self._group_of(guest).has_file(FILES[CPUS]):
            raise DriverError(
                f"guest {guest} cannot be pinned: its control group does not have the controller cpuset"
            )
        return super().apply_cpu_settings(guest, settings)

    def missing_limits(self, guest: Guest, wanted: CpuLimits) -> Sequence[str]:
        """Messages about those limits in ``wanted`` that the container cannot have."""
        group, found = self._group_of(guest), []
        if wanted.idle and not group.has_file(IDLE):
            found.append("cpu_idle: the group has no cpu.idle (Linux 5.15, controller cpu)")
        if wanted.burst and not group.has_file(FILES[BURST]):
            found.append("cpu_burst: the group has no cpu.max.burst (Linux 5.14, controller cpu)")
        return found

    def memory_missing(self, guest: Guest, wanted: MemoryLimits) -> Sequence[str]:
        """Messages about those limits in ``wanted`` that the container cannot have."""
        group, found = self._group_of(guest), []
        if wanted.oom_group and not group.has_file(FILES[OOM_GROUP]):
            found.append("oom_group: the group has no memory.oom.group: this needs the controller memory")
        held = [size for size, amount in wanted.huge_pages or () if amount]
        if held and not any(group.has_file(name) for size in held for name in PAGE_LIMITS[size]):
            found.append("huge pages: the group has no limits of them: this needs the controller hugetlb")
        return found

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Messages about those parts of ``wanted`` that the driver does not set."""
        group, found = self._group_of(guest), []
        if wanted.weight is not None and not group.has_file(FILES[IO_WEIGHT]):
            found.append("the kernel has no io.weight: this needs the controller io with io.cost")
        if wanted.rates and wanted.devices and not group.has_file(FILES[RATES[0]]):
            found.append("the group has no io.max: this needs the controller io")
        if wanted.latency_us is not None and not group.has_file(FILES[LATENCY]):
            found.append("the kernel has no io.latency: this needs CONFIG_BLK_CGROUP_IOLATENCY")
        if wanted.own_disks:
            found.append("a container has no disks of its own: name devices of the host instead of guest")
        return found

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Set those values of block I/O that differ; a guest that cannot have wanted rates is an error."""
        rated = wanted is not None and wanted.rates and wanted.devices
        if rated and not self._group_of(guest).has_file(FILES[RATES[0]]):
            raise DriverError(
                f"guest {guest} cannot have rates: its control group does not have the controller io"
            )
        return super().apply_blockio(guest, wanted)

    def _is_composed(self, guest: Guest) -> bool:
        return POD in guest.details

    def _group_of(self, guest: Guest) -> GuestCgroup:
        return self._table.find_recent(guest).own_group

    def _limit_choice(self, guest: Guest, wanted: CpuLimits) -> GoalChoice:
        if wanted.quota is not None and not self._group_of(guest).has_file(FILES[QUOTA]):
            raise QuotaError(guest, wanted.quota, "its control group does not have the controller cpu")
        return super()._limit_choice(guest, wanted)

    def _can_idle(self, guest: Guest) -> bool:
        return self._group_of(guest).has_file(IDLE)
