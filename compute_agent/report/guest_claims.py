"""Claims of the agent for guests without an allocation: their amounts, and notes about them. Pure functions.

The agent writes a *note* to disk before each claim, and keeps the note until the allocation is given back. So
the agent finds all allocations that it has perhaps claimed, even after a crash. An allocation counts as the
agent's if it is only on this host, and if a note has its owner, its type and its amounts. The agent neither
changes nor gives back any other allocation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.kept_json import HostNote, NoteFormat
from compute_agent.model.guest import Allocation, ConsumerAllocations
from compute_agent.model.guest_settings import EmulatorPolicy, GuestSettings
from compute_agent.model.messages import full_name
from compute_agent.report.capacity import Amounts, total_amounts
from compute_agent.report.history import ConsumerOwner

CLAIM_TYPE: Final = "HOST_GUEST"
"""The consumer type of guests for which the agent makes claims. Nova and operators use other types."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ClaimNote(HostNote):
    """A claim that the agent has made, or is about to make.

    :ivar key: the guest's id in the program that runs the guest.
    :ivar former: the amounts before a change that is possibly incomplete; empty if no change is under way.
    """

    guest_uuid: str
    name: str
    driver: str
    key: str
    owner: ConsumerOwner
    amounts: Amounts
    former: Amounts = field(default_factory=dict)

    def __str__(self) -> str:
        return full_name(self.name, self.guest_uuid)

    def as_consumer(self, generation: int | None) -> ConsumerAllocations:
        """The consumer of the claim, without resources; ``generation`` is None for a new consumer."""
        return ConsumerAllocations(self.guest_uuid, {}, generation, **asdict(self.owner))


def claimed_amounts(settings: GuestSettings, dedicated_classes: Iterable[str], memory_mb: int) -> Amounts:
    """The amounts to claim for a guest.

    :param dedicated_classes: the classes of guests that get dedicated CPUs.
    :param memory_mb: the memory in MiB; 0 to claim no memory.
    """
    if settings.qos_class in dedicated_classes:
        # With the policy isolate, the emulator threads have a CPU of their own.
        extra = int(settings.emulator_policy is EmulatorPolicy.ISOLATE)
        found = {"PCPU": settings.vcpus + extra}
    else:
        found = {"VCPU": settings.vcpus}
    return {**found, "MEMORY_MB": memory_mb} if memory_mb else found


def claim_query(amounts: Amounts, tree: ProviderTree) -> str:
    """The query of a claim, in the form of ``GET /allocation_candidates``.

    If any provider has all classes, the query asks for one provider with all amounts. The query also matches
    a disabled host, because the guest already runs there.
    """
    holders = [{node.uuid for node in tree.providers_of(name)} for name in amounts]
    suffix = "1" if set.intersection(*holders) else ""
    return f"resources{suffix}=" + ",".join(f"{name}:{amount}" for name, amount in sorted(amounts.items()))


def is_own_claim(note: ClaimNote, record: ConsumerAllocations, own_part: Allocation) -> bool:
    """Whether an allocation is the claim of a note.

    :param own_part: the part of the allocation that is on this host.
    """
    total = total_amounts(record.resources)
    owner = ConsumerOwner(record.project_id or "", record.user_id or "", record.consumer_type)
    return owner == note.owner and own_part == record.resources and total in (note.amounts, note.former)


def _row_of(note: ClaimNote) -> dict[str, Any]:
    return {
        "uuid": note.guest_uuid,
        "name": note.name,
        "driver": note.driver,
        "key": note.key,
        "owner": list(astuple(note.owner)),
        "amounts": dict(note.amounts),
        "former": dict(note.former),
    }


def _read_row(guest_uuid: str, row: Any) -> ClaimNote:
    return ClaimNote(
        guest_uuid,
        kept_json.text(row["name"]),
        kept_json.text(row["driver"]),
        kept_json.text(row["key"]),
        ConsumerOwner(*map(kept_json.text, row["owner"])),
        _read_amounts(row["amounts"]),
        _read_amounts(row["former"]),
        # Notes of an older version of the agent lack the host.
        machine=kept_json.text(row.get("machine", "")),
    )


CLAIM_NOTES: Final = NoteFormat(_VERSION, _row_of, _read_row)
"""The format of the file of notes about claims."""


def _read_amounts(row: Any) -> Amounts:
    return {name: int(kept_json.read_number(amount, 1 << 31)) for name, amount in row.items()}
