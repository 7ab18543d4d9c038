"""Random clouds with timed amounts, and a slow judge whether claims fit in a window."""

import math
import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from placement import microversion
from placement.read_model.provider import SHARES, Inventory
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas.candidates import parse_candidates
from placement.search.budget import SearchBudget
from placement.search.claims.availability import during_window, skylines_in
from placement.search.claims.claim import ClaimScenario, HostChoice, WantedClaim
from placement.search.claims.host_rooms import TimedSearch
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.claims.topology import TopologyPolicy
from placement.store.consumers import ConsumerOwnership
from placement.store.time_profile import TimedAmount, TimeWindow, largest_sum, needed_holds
from placement.store.time_skyline import TimeSkyline, make_skylines
from tests.placement.search.snapshots import Spec, build, inventory, name_to_uuid

LAST = 12
AGGREGATE = ["rack"]


def make_wanted(query: str, topology: TopologyPolicy | None = None) -> WantedClaim:
    pairs = [tuple(each.split("=", 1)) for each in query.split("&")]
    request = parse_candidates(pairs, microversion.MAX)  # type: ignore[arg-type]  # pairs of two texts
    return WantedClaim("", None, ConsumerOwnership("", "", ""), request, microversion.MAX, topology=topology)


HOSTS = [
    Spec("a", inventories={"VCPU": 4, "DISK_GB": 2}, aggregates=AGGREGATE),
    Spec("a0", "a", {"PCPU": 4, "MEMORY_MB": inventory(4, max_unit=3)}, (ZONE, "CUSTOM_FAST")),
    Spec("a1", "a", {"PCPU": 3, "MEMORY_MB": 4}, (ZONE,)),
    Spec(
        "b", inventories={"VCPU": 3, "PCPU": 4, "MEMORY_MB": 4}, aggregates=AGGREGATE, traits=["CUSTOM_FAST"]
    ),
    Spec("c", inventories={"VCPU": 4, "DISK_GB": 3}),
    Spec("pool", inventories={"DISK_GB": 4}, traits=[SHARES], aggregates=AGGREGATE),
]
QUERIES = [
    "resources=VCPU:2",
    "resources=VCPU:3,DISK_GB:2",
    "resources=PCPU:3&required=CUSTOM_FAST",
    "resources=PCPU:3,MEMORY_MB:3",
    "resources=VCPU:1&resources_A=PCPU:2&resources_B=PCPU:2&group_policy=isolate",
    "resources_A=PCPU:2,MEMORY_MB:2&resources_B=PCPU:2,MEMORY_MB:2&group_policy=none",
    "resources=DISK_GB:2",
    "resources=PCPU:4,MEMORY_MB:4",
]
windows = st.tuples(st.integers(0, LAST - 1), st.integers(1, LAST)).map(
    lambda pair: TimeWindow(pair[0], pair[0] + pair[1])
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[ModelSnapshot, list[TimedAmount]]:
    """Draw hosts, and timed amounts that fit into them; hosts also have consumers without an end.

    Afterwards some inventories are lowered, perhaps below the amounts that are in use or promised.
    """
    pool = draw(st.booleans())
    specs = [each for each in HOSTS if pool or each.name != "pool"]
    free: dict[tuple[str, str], int] = {}
    used: dict[str, dict[str, int]] = {}
    for spec in specs:
        for name, given_inventory in spec.inventories.items():
            total = given_inventory if isinstance(given_inventory, int) else given_inventory.total
            endless = draw(st.sampled_from([0, 0, 0, 1]))
            used.setdefault(spec.name, {})[name] = endless
            free[spec.name, name] = total - endless
    amounts: list[TimedAmount] = []
    for key in draw(st.lists(st.sampled_from(sorted(free)), max_size=14)):
        one = TimedAmount(
            str(uuid.UUID(int=len(amounts))),
            name_to_uuid(key[0]),
            key[1],
            draw(st.integers(1, 3)),
            draw(windows),
            has_begun=draw(st.booleans()),
        )
        here = [each for each in amounts if each.key == one.key]
        if largest_sum([*here, one], TimeWindow(0, math.inf)) <= free[key]:
            amounts.append(one)
    holds = needed_holds(amounts, 0)
    for spec in specs:
        for name in spec.inventories:
            key = name_to_uuid(spec.name), name
            begun = sum(each.used for each in amounts if each.key == key and each.has_begun)
            used[spec.name][name] += holds.get(key, 0) + begun
    less = draw(st.dictionaries(st.sampled_from(sorted(free)), st.integers(1, 3), max_size=2))
    lowered = [
        replace(
            spec,
            used=used.get(spec.name, {}),
            inventories={
                name: _lowered(amount, less.get((spec.name, name), 0))
                for name, amount in spec.inventories.items()
            },
        )
        for spec in specs
    ]
    return build(*lowered), amounts


def _lowered(amount: int | Inventory, less: int) -> int | Inventory:
    if isinstance(amount, int):
        return max(1, amount - less)
    return replace(amount, total=max(1, amount.total - less))


def fits(
    snapshot: ModelSnapshot, amounts: list[TimedAmount], wanted: Sequence[WantedClaim], window: TimeWindow
) -> bool:
    """Decide by the whole cloud, with the usage of each instant."""
    changed = during_window(timed_search(snapshot, amounts), window)
    world = ClaimScenario.from_members(changed, {}, wanted)
    return not isinstance(place_claims(world, wanted, SearchBudget(), random.Random(0)), UnplacedClaim)


def timed_search(
    snapshot: ModelSnapshot, amounts: list[TimedAmount], *, seconds: float = math.inf, seed: int = 0
) -> TimedSearch:
    """Return a search in a cloud with timed amounts, with a budget of CPU time."""
    skylines = skylines_of(snapshot, amounts)
    return TimedSearch(snapshot, skylines, SearchBudget(seconds), random.Random(seed))


def skylines_of(
    snapshot: ModelSnapshot, amounts: list[TimedAmount]
) -> Mapping[int, Mapping[str, TimeSkyline]]:
    return skylines_in(snapshot, make_skylines(amounts, needed_holds(amounts, 0).items()))


def have_room(
    snapshot: ModelSnapshot, amounts: list[TimedAmount], choices: Sequence[HostChoice], window: TimeWindow
) -> bool:
    """Return whether choices together are below the capacities at each instant of a window."""
    taken: Counter[tuple[int, str]] = Counter()
    for each in choices:
        for provider, some in each.resources:
            taken.update({(provider.id, name): amount for name, amount in some.items()})
    for (provider_id, name), amount in taken.items():
        provider = snapshot.providers[provider_id]
        here = [one for one in amounts if one.key == (provider.uuid, name)]
        begun = sum(one.used for one in here if one.has_begun)
        hold = needed_holds(here, 0).get((provider.uuid, name), 0)
        endless = provider.used.get(name, 0) - begun - hold
        if endless + largest_sum(here, window) + amount > provider.inventories[name].capacity:
            return False
    return True
