"""CPUs of one's own or shared ones: the CPU policy, and what goes with it."""

from dataclasses import dataclass
from typing import Final

from placement_extras.flavors.flavor import first_cpus, parse_mask, refused
from placement_extras.flavors.guest import FlavorGuest, check_known, flag

DEDICATED: Final = "dedicated"
SHARED: Final = "shared"
MIXED: Final = "mixed"
ISOLATE: Final = "isolate"
REQUIRE: Final = "require"

THREADS: Final = "HW_CPU_HYPERTHREADING"


@dataclass(frozen=True, slots=True)
class CpuPinning:
    """How the CPUs of a guest are had.

    ``policy`` and ``threads`` are those that flavor or image name; only these are translated. ``effective``
    is the policy with amounts of ``PCPU`` or ``VCPU`` in extra specs taken for one. ``dedicated`` are the
    dedicated CPUs.
    """

    policy: str | None
    threads: str | None
    emulator_is_isolated: bool
    effective: str | None
    dedicated: int


def read(guest: FlavorGuest) -> CpuPinning:
    """How the CPUs of a guest are had.

    :raises InvalidRequest: what flavor and image say of it cannot be.
    """
    policy = _policy(guest)
    threads = _threads(guest)
    emulator = _emulator(guest)
    realtime = _realtime(guest, emulator)
    mask = _mask(guest)
    effective = _effective(guest, policy, emulator == ISOLATE)
    _check_threads(guest, threads, effective)
    if effective in (SHARED, None):
        if emulator == ISOLATE:
            raise refused("hw:emulator_threads_policy=isolate needs dedicated or mixed CPUs")
        if realtime:
            raise refused("hw:cpu_realtime needs dedicated or mixed CPUs")
    if mask and effective != MIXED:
        raise refused("hw:cpu_dedicated_mask needs hw:cpu_policy=mixed")
    if effective == MIXED and bool(mask) == bool(realtime):
        raise refused(
            "of mixed CPUs either hw:cpu_dedicated_mask says which are dedicated, "
            "or hw:cpu_realtime with its mask"
        )
    dedicated = first_cpus(guest.flavor.vcpus) if effective == DEDICATED else mask or realtime
    return CpuPinning(
        policy, threads, emulator == ISOLATE, effective, dedicated if effective in (DEDICATED, MIXED) else 0
    )


def _policy(guest: FlavorGuest) -> str | None:
    flavor, image = guest.texts("cpu_policy")
    check_known("hw", "cpu_policy", flavor)
    if flavor in (SHARED, MIXED) and (image == DEDICATED or (flavor, image) == (SHARED, MIXED)):
        raise refused(f"hw_cpu_policy of the image is {image}, but the flavor has {flavor} CPUs")
    return flavor or image


def _threads(guest: FlavorGuest) -> str | None:
    flavor, image = guest.texts("cpu_thread_policy")
    check_known("hw", "cpu_thread_policy", flavor)
    if flavor in (None, "prefer"):
        return flavor or image
    if image and image != flavor:
        raise refused(f"hw_cpu_thread_policy of the image is {image}, hw:cpu_thread_policy {flavor!r}")
    return flavor


def _emulator(guest: FlavorGuest) -> str | None:
    policy = guest.specs.get("hw:emulator_threads_policy")
    if policy and policy not in ("share", ISOLATE):
        raise refused(f"hw:emulator_threads_policy cannot be {policy!r}, only one of isolate, share")
    return policy or None


def _realtime(guest: FlavorGuest, emulator: str | None) -> int:
    """The realtime CPUs; those that the image names go before those of the flavor."""
    if not flag(guest.specs.get("hw:cpu_realtime", "")):
        return 0
    flavor, image = guest.texts("cpu_realtime_mask")
    mask = image or flavor
    everything = first_cpus(guest.flavor.vcpus)
    found = _parsed("cpu_realtime_mask", mask, guest.flavor.vcpus) if mask else everything
    if not found:
        raise refused("no CPU is left to be a realtime one")
    if found & ~everything:
        raise refused(f"hw:cpu_realtime_mask names CPUs beyond the {guest.flavor.vcpus} of the flavor")
    if found == everything and not emulator:
        raise refused(
            "hw:cpu_realtime_mask has to leave a CPU that is none, or hw:emulator_threads_policy be set"
        )
    return found


def _mask(guest: FlavorGuest) -> int:
    mask = guest.specs.get("hw:cpu_dedicated_mask")
    if not mask:
        return 0
    everything = first_cpus(guest.flavor.vcpus)
    found = _parsed("cpu_dedicated_mask", mask, guest.flavor.vcpus)
    if not found or not everything & ~found:
        raise refused("hw:cpu_dedicated_mask has to leave both dedicated and shared CPUs")
    if found & ~everything:
        raise refused(f"hw:cpu_dedicated_mask names CPUs beyond the {guest.flavor.vcpus} of the flavor")
    return found


def _parsed(name: str, mask: str, vcpus: int) -> int:
    try:
        return parse_mask(mask, vcpus)
    except ValueError:
        raise refused(f"hw:{name} cannot be {mask!r}") from None


def _effective(guest: FlavorGuest, policy: str | None, emulator_is_isolated: bool) -> str | None:
    """The policy, if the extra specs have no amounts of CPUs; otherwise what these mean."""
    shared = _amount(guest, "VCPU")
    dedicated = _amount(guest, "PCPU")
    if policy and (shared or dedicated):
        raise refused("resources:VCPU and resources:PCPU do not go together with a CPU policy")
    if shared and dedicated:
        raise refused("resources:VCPU and resources:PCPU do not go together")
    if dedicated:
        needed = guest.flavor.vcpus + emulator_is_isolated
        if dedicated != needed:
            raise refused(f"the extra specs ask for {dedicated} PCPU, but {needed} are needed")
        return DEDICATED
    return SHARED if shared else policy


def _amount(guest: FlavorGuest, resource_class: str) -> int:
    """The sum of what extra specs ask for; what is no number is ignored elsewhere, and logged."""
    total = 0
    for name, value in guest.suffixed("resources"):
        if name.startswith(resource_class):  # also of classes whose names go on: so Nova reads it
            try:
                total += int(value)
            except ValueError:
                continue
    return total


def _check_threads(guest: FlavorGuest, threads: str | None, effective: str | None) -> None:
    wanted = next((value for name, value in guest.suffixed("trait") if name.startswith(THREADS)), None)
    if wanted is None and THREADS in guest.image.traits:
        wanted = "required"
    if threads and wanted:
        raise refused(f"the trait {THREADS} does not go together with a policy for threads of CPUs")
    if (threads or wanted in ("required", "forbidden")) and effective in (SHARED, None):
        raise refused(
            "a policy for threads of CPUs (hw:cpu_thread_policy or the trait HW_CPU_HYPERTHREADING) needs "
            "dedicated or mixed CPUs"
        )
