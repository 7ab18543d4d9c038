"""Reads the CPU policy of a guest (dedicated or shared CPUs) and the extra specs that depend on it."""

from dataclasses import dataclass
from typing import Final

from placement_extras.flavors.flavor import first_cpus, parse_mask, refusal_error
from placement_extras.flavors.guest import FlavorGuest, check_known, parse_flag

# the values of hw:cpu_policy, hw:cpu_thread_policy and hw:emulator_threads_policy in Nova
DEDICATED: Final = "dedicated"
SHARED: Final = "shared"
MIXED: Final = "mixed"
ISOLATE: Final = "isolate"
REQUIRE: Final = "require"

THREADS: Final = "HW_CPU_HYPERTHREADING"


@dataclass(frozen=True, slots=True)
class CpuPinning:
    """The CPU policy of a guest.

    :param policy: the CPU policy of flavor or image. It determines the amounts of ``PCPU`` and ``VCPU``.
    :param threads: the thread policy of flavor or image. It determines a required or forbidden trait.
    :param emulator_is_isolated: whether the emulator threads get a dedicated CPU of their own.
    :param effective: ``policy``; if ``policy`` is None, the policy that amounts of ``PCPU`` or ``VCPU`` in
        extra specs imply. An implied policy is only checked, and does not change the request.
    :param dedicated: the set of the dedicated CPUs.
    """

    policy: str | None
    threads: str | None
    emulator_is_isolated: bool
    effective: str | None
    dedicated: int


def read(guest: FlavorGuest) -> CpuPinning:
    """Read the CPU policy of a guest."""
    policy = _cpu_policy(guest)
    threads = _thread_policy(guest)
    emulator = _emulator_policy(guest)
    realtime = _realtime_cpus(guest, emulator)
    mask = _dedicated_cpus(guest)
    # amounts of PCPU or VCPU in extra specs imply a policy, but the request has these amounts unchanged
    effective = _effective_policy(guest, policy, emulator == ISOLATE)
    _check_threads(guest, threads, effective)
    if effective in (SHARED, None):
        if emulator == ISOLATE:
            raise refusal_error("hw:emulator_threads_policy=isolate needs dedicated or mixed CPUs")
        if realtime:
            raise refusal_error("hw:cpu_realtime needs dedicated or mixed CPUs")
    if mask and effective != MIXED:
        raise refusal_error("hw:cpu_dedicated_mask needs hw:cpu_policy=mixed")
    # for a mixed guest, the dedicated CPUs are either those of the mask or the realtime CPUs
    if effective == MIXED and bool(mask) == bool(realtime):
        raise refusal_error(
            "mixed CPUs need either hw:cpu_dedicated_mask, which names the dedicated ones, "
            "or hw:cpu_realtime with its mask"
        )
    dedicated = first_cpus(guest.flavor.vcpus) if effective == DEDICATED else mask or realtime
    return CpuPinning(
        policy, threads, emulator == ISOLATE, effective, dedicated if effective in (DEDICATED, MIXED) else 0
    )


def _cpu_policy(guest: FlavorGuest) -> str | None:
    flavor, image = guest.both_texts("cpu_policy")
    check_known("hw", "cpu_policy", flavor)
    # an image must not ask for more dedicated CPUs than its flavor
    if flavor in (SHARED, MIXED) and (image == DEDICATED or (flavor, image) == (SHARED, MIXED)):
        raise refusal_error(f"hw_cpu_policy of the image is {image}, but the flavor has {flavor} CPUs")
    return flavor or image


def _thread_policy(guest: FlavorGuest) -> str | None:
    flavor, image = guest.both_texts("cpu_thread_policy")
    check_known("hw", "cpu_thread_policy", flavor)
    # as in Nova, "prefer" in the flavor overrides the policy of the image
    if flavor in (None, "prefer"):
        return flavor or image
    if image and image != flavor:
        raise refusal_error(
            f"hw_cpu_thread_policy of the image is {image}, but hw:cpu_thread_policy"
            f" of the flavor is {flavor!r}"
        )
    return flavor


def _emulator_policy(guest: FlavorGuest) -> str | None:
    policy = guest.specs.get("hw:emulator_threads_policy")
    if policy and policy not in ("share", ISOLATE):
        raise refusal_error(f"hw:emulator_threads_policy cannot be {policy!r}, only one of isolate, share")
    return policy or None


def _realtime_cpus(guest: FlavorGuest, emulator: str | None) -> int:
    """Return the set of realtime CPUs. The mask of the image overrides the mask of the flavor."""
    if not parse_flag(guest.specs.get("hw:cpu_realtime", "")):
        return 0
    flavor, image = guest.both_texts("cpu_realtime_mask")
    mask = image or flavor
    everything = first_cpus(guest.flavor.vcpus)
    found = _parse_mask("cpu_realtime_mask", mask, guest.flavor.vcpus) if mask else everything
    if not found:
        raise refusal_error("hw:cpu_realtime_mask leaves no realtime CPU")
    if found & ~everything:
        raise refusal_error(f"hw:cpu_realtime_mask names CPUs beyond the {guest.flavor.vcpus} of the flavor")
    # without a policy for its threads, the emulator needs a CPU of the guest that is not realtime
    if found == everything and not emulator:
        raise refusal_error(
            "hw:cpu_realtime_mask must leave a CPU that is not realtime, or hw:emulator_threads_policy must"
            " be set"
        )
    return found


def _dedicated_cpus(guest: FlavorGuest) -> int:
    mask = guest.specs.get("hw:cpu_dedicated_mask")
    if not mask:
        return 0
    everything = first_cpus(guest.flavor.vcpus)
    found = _parse_mask("cpu_dedicated_mask", mask, guest.flavor.vcpus)
    if not found or not everything & ~found:
        raise refusal_error("hw:cpu_dedicated_mask must leave both dedicated and shared CPUs")
    if found & ~everything:
        raise refusal_error(f"hw:cpu_dedicated_mask names CPUs beyond the {guest.flavor.vcpus} of the flavor")
    return found


def _parse_mask(name: str, mask: str, vcpus: int) -> int:
    try:
        return parse_mask(mask, vcpus)
    except ValueError:
        raise refusal_error(f"hw:{name} cannot be {mask!r}") from None


def _effective_policy(guest: FlavorGuest, policy: str | None, emulator_is_isolated: bool) -> str | None:
    """Return ``policy``; if it is None, return the policy that amounts of CPUs in the extra specs imply."""
    shared = _cpu_amount(guest, "VCPU")
    dedicated = _cpu_amount(guest, "PCPU")
    if policy and (shared or dedicated):
        raise refusal_error("resources:VCPU and resources:PCPU cannot be combined with a CPU policy")
    if shared and dedicated:
        raise refusal_error("resources:VCPU and resources:PCPU cannot be combined")
    if dedicated:
        needed = guest.flavor.vcpus + emulator_is_isolated  # isolated emulator threads get a CPU of their own
        if dedicated != needed:
            raise refusal_error(f"the extra specs ask for {dedicated} PCPU, but {needed} are needed")
        return DEDICATED
    return SHARED if shared else policy


def _cpu_amount(guest: FlavorGuest, resource_class: str) -> int:
    """Return the sum of the amounts of a CPU class in extra specs.

    A value that is no number is skipped here; the module ``groups`` warns of it.
    """
    total = 0
    for name, value in guest.numbered_specs("resources"):
        if name.startswith(resource_class):  # Nova, too, compares only the beginning of the name
            try:
                total += int(value)
            except ValueError:
                continue
    return total


def _check_threads(guest: FlavorGuest, threads: str | None, effective: str | None) -> None:
    """Check that the CPU policy allows the thread policy, or the wish for the trait HW_CPU_HYPERTHREADING."""
    wanted = next((value for name, value in guest.numbered_specs("trait") if name.startswith(THREADS)), None)
    if wanted is None and THREADS in guest.image.traits:
        wanted = "required"
    if threads and wanted:
        raise refusal_error(f"the trait {THREADS} cannot be combined with a policy for threads of CPUs")
    if (threads or wanted in ("required", "forbidden")) and effective in (SHARED, None):
        raise refusal_error(
            "a policy for threads of CPUs (hw:cpu_thread_policy or the trait HW_CPU_HYPERTHREADING) needs "
            "dedicated or mixed CPUs"
        )
