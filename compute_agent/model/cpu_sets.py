"""What the CPUs of a host are for."""

from dataclasses import dataclass

from compute_agent.model import cpuset


@dataclass(frozen=True, slots=True)
class CpuSets:
    """What each online CPU is for; those in no set belong to the host.

    ``dedicated`` and ``shared`` are disjoint but for the legacy ``vcpu_pin_set`` alone, which is both.
    ``emulator`` is where emulator threads run that have no CPU of their own; it is empty where there is no
    shared CPU. ``pooled`` are those of them that are in a pool, for its members only. ``offline`` are CPUs
    of ``[compute] cpu_dedicated_set`` that are offline, and so in no set until they are online.
    """

    dedicated: frozenset[int]
    shared: frozenset[int]
    emulator: frozenset[int]
    reserved_vcpus: int = 0
    warnings: tuple[str, ...] = ()
    pooled: frozenset[int] = frozenset()
    offline: frozenset[int] = frozenset()

    @property
    def offline_warning(self) -> str:
        """A sentence on offline dedicated CPUs; empty if there are none."""
        if not self.offline:
            return ""
        return (
            f"[compute] cpu_dedicated_set: {named(self.offline)} {_are(self.offline)} offline, as"
            " nova-compute's cpu_power_management has it with CPUs that no guest holds; dedicated again when"
            " online"
        )

    @property
    def open_shared(self) -> frozenset[int]:
        """The shared CPUs of no pool."""
        return self.shared - self.pooled

    @property
    def both(self) -> bool:
        """Whether the same CPUs back PCPU and VCPU, as with the legacy ``vcpu_pin_set`` alone."""
        return bool(self.dedicated) and self.dedicated == self.shared

    @property
    def legacy(self) -> bool:
        """Whether they come from the legacy ``vcpu_pin_set``, with or without ``cpu_shared_set``."""
        return self.both or self.emulator != self.shared

    def stray(self, held: frozenset[int], online: frozenset[int], reach: frozenset[int] | None = None) -> str:
        """What is wrong with the dedicated CPUs that a guest holds, in words; empty if nothing is.

        They are in no set, or in another one, after the configuration changed, and offline ones run nobody.
        ``reach`` are those of its pools, or of no pool, where there are any.
        """
        gone, offline = held & online - self.dedicated, held - online
        pooled = held & online & self.dedicated - reach if reach is not None else frozenset[int]()
        reasons = [
            f"{named(cpus)} {reason}"
            for cpus, reason in (
                (gone, f"{_are(gone)} not in [compute] cpu_dedicated_set any more"),
                (offline, f"{_are(offline)} offline"),
                (pooled, f"{_are(pooled)} not of the pool that it holds CPUs of any more"),
            )
            if cpus
        ]
        return ", ".join(reasons)


def named(cpus: frozenset[int]) -> str:
    """CPUs in the words of a message: ``CPU 3``, ``CPUs 4-7``."""
    return f"{'CPU' if len(cpus) == 1 else 'CPUs'} {cpuset.format(cpus)}"


def _are(cpus: frozenset[int]) -> str:
    return "is" if len(cpus) == 1 else "are"
