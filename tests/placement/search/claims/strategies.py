"""Strategies for random scenarios of claims."""

from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from placement.read_model.provider import Inventory
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas import candidates
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.topology import TopologyPolicy
from placement.store.consumers import ConsumerOwnership
from tests.placement.search.snapshots import Spec, build, build_scenario, inventory
from tests.placement.search.strategies import fleets, situations

OWNER = ConsumerOwnership("project", "user", "INSTANCE")
anything = situations(requests_each=1).map(lambda each: (each[0], each[1][0])) | fleets()


def zoned(snapshot: ModelSnapshot) -> ModelSnapshot:
    """The snapshot with the trait of NUMA nodes in place of one of the random traits."""
    return ModelSnapshot(
        replace(each, traits=each.traits | {ZONE}) if "T1" in each.traits else each for each in snapshot
    )


TOPOLOGIES = st.sampled_from(list(TopologyPolicy))


@st.composite
def hosts(draw: st.DrawFn, *, uneven: bool = False, caches: bool = False) -> ClaimScenario:
    """Hosts with random usage. With ``uneven``, each zone of a host has its own bounds for an allocation of
    PCPU.

    With ``caches``, a zone may have two providers of PCPU below it, each with its own bounds.
    """
    specs = []
    for number in range(draw(st.integers(1, 2))):
        name = f"h{number}"
        flat = not caches and draw(st.integers(0, 4)) == 0
        specs.append(Spec(name, None, {"DISK_GB": 10}))
        for zone in range(draw(st.integers(1, 3))):
            inventories, used = dict[str, Inventory](), dict[str, int]()
            for resource_class, step in (("PCPU", 1), ("MEMORY_MB", 2)):
                if draw(st.integers(0, 5)):
                    least = 1
                    if uneven and resource_class == "PCPU":
                        step, least = draw(st.integers(1, 3)), draw(st.integers(1, 3))
                    total = draw(st.integers(1, 4)) * step
                    maximum = draw(st.sampled_from((100, 100, 2)))
                    inventories[resource_class] = inventory(
                        total, step_size=step, min_unit=least, max_unit=maximum
                    )
                    used[resource_class] = draw(st.integers(0, total // step)) * step
            traits = [] if flat else [ZONE]
            traits += draw(st.sampled_from(([], ["T1"])))
            zone_name = f"{name}_{zone}"
            if caches and "PCPU" in inventories and draw(st.booleans()):
                del inventories["PCPU"], used["PCPU"]
                specs.append(Spec(zone_name, name, inventories, traits, used=used))
                for cache in range(2):
                    step, least = draw(st.integers(1, 3)), draw(st.integers(1, 3))
                    total = draw(st.integers(1, 3)) * step
                    cpus = {"PCPU": inventory(total, step_size=step, min_unit=least)}
                    taken = {"PCPU": draw(st.integers(0, total // step)) * step}
                    more = draw(st.sampled_from(([], ["T1"])))
                    specs.append(Spec(f"{zone_name}_{cache}", zone_name, cpus, more, used=taken))
                continue
            specs.append(Spec(zone_name, name, inventories, traits, used=used))
    snapshot = build(*specs)
    zones = sorted(each.id for each in snapshot if ZONE in each.traits)
    known = draw(st.booleans())
    distances = {
        pair: draw(st.integers(11, 13)) for pair in combinations(zones, 2) if known and draw(st.booleans())
    }
    return build_scenario(snapshot, distances=distances)


queries = st.builds(
    lambda *parts: "&".join(part for part in parts if part),
    st.sampled_from(
        [
            f"resources=PCPU:{cpus}{more}"
            for cpus in (1, 2, 3, 4, 6)
            for more in ("", ",MEMORY_MB:4", ",DISK_GB:1")
        ]
        + ["resources=MEMORY_MB:6", "resources=PCPU:2,MEMORY_MB:8,DISK_GB:2"]
    ),
    st.sampled_from(["", "", "resources1=PCPU:1", "resources1=PCPU:1&required1=T1"]),
    st.sampled_from(["", "", "required=T1", "required=!T1"]),
)


def wants(query: str, topology: TopologyPolicy, **fields: object) -> WantedClaim:
    asked = candidates.parse_body({"query": query, "flavor": None, "microversion": "1.39"}, {})
    return WantedClaim("c", None, OWNER, asked.request, asked.version, topology=topology, **fields)  # type: ignore[arg-type]


worlds_of_topologies = st.tuples(hosts() | hosts(uneven=True), TOPOLOGIES)


def nodes(name: str, *free: int, memory: int = 64) -> list[Spec]:
    """A host with NUMA nodes of 8 PCPU each. The arguments are the numbers of free PCPU."""
    return [Spec(name, None, {"DISK_GB": 100})] + [
        Spec(f"{name}_{number}", name, {"PCPU": 8, "MEMORY_MB": memory}, [ZONE], used={"PCPU": 8 - each})
        for number, each in enumerate(free)
    ]
