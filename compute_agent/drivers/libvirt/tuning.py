"""What is set on one domain: pins, memory and scheduler parameters, live and in the persistent definition.

Calls that fail raise ``libvirt.libvirtError``, which the driver makes its own errors of. The persistent
definition decides where the guest runs next time, for the moment until it is placed anew: what cannot be
written there costs a log line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from compute_agent.drivers.base import CpuSettings
from compute_agent.drivers.libvirt.qemu import Role
from compute_agent.host import cpuset

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerParameters:
    """How the kernel's scheduler treats a guest beside others on its CPUs; None leaves a value as it is.

    ``shares`` is a weight (1024 by libvirt's default for cgroup v1, 100 for v2), ``period`` and ``quota`` are
    microseconds that each guest CPU may run in each period; a negative quota is no limit.
    """

    shares: int | None = None
    period: int | None = None
    quota: int | None = None


_SCHEDULER_FIELDS = {"shares": "cpu_shares", "period": "vcpu_period", "quota": "vcpu_quota"}


class Tuning:
    """The settings of one domain."""

    def __init__(self, libvirt: Any, domain: Any, host_cpus: int) -> None:
        self._libvirt = libvirt
        self._domain = domain
        self._host_cpus = host_cpus

    def pin(self, roles: Iterable[Role], settings: CpuSettings) -> None:
        """Pin what the threads with these roles do on the running domain."""
        live = self._libvirt.VIR_DOMAIN_AFFECT_LIVE
        for it in sorted(
            set(roles), key=lambda role: (not role.runs_guest, role.iothread or 0, role.vcpu or 0)
        ):
            if it.vcpu is not None and it.vcpu < len(settings.vcpu_cpus):
                self._domain.pinVcpuFlags(it.vcpu, self._map(settings.vcpu_cpus[it.vcpu]), live)
            elif it.runs_guest:
                for vcpu in [it.vcpu] if it.vcpu is not None else range(len(settings.vcpu_cpus)):
                    self._domain.pinVcpuFlags(vcpu, self._map(settings.cpus), live)
            elif it.iothread is not None:
                self._domain.pinIOThread(it.iothread, self._map(settings.emulator_cpus), live)
            else:
                self._domain.pinEmulator(self._map(settings.emulator_cpus), live)

    def bind_memory(self, mems: frozenset[int]) -> bool:
        """Let the running domain have memory of these NUMA nodes only. True if anything was to be done."""
        return self._bind_memory(mems, self._libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def persist(self, settings: CpuSettings) -> None:
        """Write pins and memory into the persistent definition, if there is one and it has others."""
        config = self._libvirt.VIR_DOMAIN_AFFECT_CONFIG
        try:
            if not self._domain.isPersistent():
                return
            self._persist_pins(settings, config)
        except self._libvirt.libvirtError as error:
            LOG.warning("The definition of guest %s keeps its pins: %s", self._domain.UUIDString(), error)
            return
        try:
            self._bind_memory(settings.mems, config)
        except self._libvirt.libvirtError as error:
            LOG.warning("The definition of guest %s keeps its memory: %s", self._domain.UUIDString(), error)

    def scheduler(self) -> SchedulerParameters:
        """The scheduler parameters of the running domain."""
        has = self._domain.schedulerParametersFlags(self._libvirt.VIR_DOMAIN_AFFECT_LIVE)
        return SchedulerParameters(**{field: has.get(name) for field, name in _SCHEDULER_FIELDS.items()})

    def set_scheduler(self, wanted: SchedulerParameters) -> bool:
        """Set what differs, on the running domain and in its definition. True if it did."""
        has = self.scheduler()
        change = {
            name: getattr(wanted, field)
            for field, name in _SCHEDULER_FIELDS.items()
            if getattr(wanted, field) not in (None, getattr(has, field))
        }
        if not change:
            return False
        self._domain.setSchedulerParametersFlags(change, self._libvirt.VIR_DOMAIN_AFFECT_LIVE)
        if self._domain.isPersistent():
            self._domain.setSchedulerParametersFlags(change, self._libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        return True

    def _persist_pins(self, settings: CpuSettings, config: int) -> None:
        """Every write makes libvirtd write a file: only what differs is written."""
        domain = self._domain
        for vcpu, has in enumerate(domain.vcpuPinInfo(config)):
            wanted = settings.vcpu_cpus[vcpu] if vcpu < len(settings.vcpu_cpus) else settings.cpus
            self._write_if_other(has, wanted, partial(domain.pinVcpuFlags, vcpu, flags=config))
        emulator = settings.emulator_cpus
        self._write_if_other(
            domain.emulatorPinInfo(config), emulator, partial(domain.pinEmulator, flags=config)
        )
        for number, has, *_ in domain.ioThreadInfo(config):
            self._write_if_other(has, emulator, partial(domain.pinIOThread, number, flags=config))

    def _write_if_other(
        self, has: tuple[bool, ...], wanted: frozenset[int], write: Callable[[tuple[bool, ...]], Any]
    ) -> None:
        cpus = self._map(wanted)
        if tuple(has) != cpus:
            write(cpus)

    def _bind_memory(self, mems: frozenset[int], flag: int) -> bool:
        if not mems:
            return False
        has: Mapping[str, Any] = self._domain.numaParameters(flag)
        if cpuset.parse(has.get("numa_nodeset") or "") == mems:
            return False
        self._domain.setNumaParameters({"numa_nodeset": cpuset.format(mems)}, flag)
        return True

    def _map(self, cpus: frozenset[int]) -> tuple[bool, ...]:
        """A CPU map of libvirt's. CPUs that the host does not have are left out, and libvirt refuses none."""
        return tuple(cpu in cpus for cpu in range(self._host_cpus))
