"""Tests of counting guests in clouds that are too large for brute force, or that show a single property."""

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search.budget import SearchBudget
from placement_extras.planner.capacity import CloudHosts, FlavorCapacity, StrandedHost, count_flavor
from placement_extras.planner.packing import FitBounds, FlavorFootprints, pack_guests
from tests.placement.search.snapshots import Spec, build


def counted(snapshot: ModelSnapshot, *parameters: tuple[str, str]) -> FlavorCapacity:
    return count_flavor(CloudHosts(snapshot, SearchBudget()), parse_candidates(parameters, (1, 39)))


def test_the_worked_example() -> None:
    def host(name: str, disk: int) -> list[Spec]:
        return [
            Spec(name, None, {"DISK_GB": 10}, used={"DISK_GB": 10 - disk}),
            Spec(f"{name}_0", name, {"VCPU": 8}, used={"VCPU": 4}),
            Spec(f"{name}_1", name, {"VCPU": 8}, used={"VCPU": 5}),
        ]

    snapshot = build(*host("cn1", 10), *host("cn2", 1))
    found = counted(snapshot, ("resources", "DISK_GB:2"), ("resources_CPU", "VCPU:2"))
    assert (found.fit, found.hosts, found.candidate_hosts) == (FitBounds(3, 3), 2, 1)
    (short,) = found.shortages
    assert (short.classes, short.hosts, short.stranded, short.guests) == (("DISK_GB",), 1, {"VCPU": 7}, 3)
    root = next(each for each in snapshot if each.name == "cn2")
    assert short.examples == (StrandedHost(root, {"VCPU": 7}, 3),)


def test_a_host_that_could_never_serve_it_is_none_and_short_of_nothing() -> None:
    sizes = {"small": 16, "large": 18}
    snapshot = build(*(Spec(name, None, {"PCPU": size}, used={"PCPU": 2}) for name, size in sizes.items()))
    found = counted(snapshot, ("resources", "PCPU:17"))
    assert (found.fit, found.hosts, found.candidate_hosts) == (FitBounds(0, 0), 1, 0)
    assert [(each.classes, each.hosts) for each in found.shortages] == [(("PCPU",), 1)]


def test_hundreds_of_hosts_take_of_one_pool_what_there_is() -> None:
    hosts = [Spec(f"cn{number}", None, {"VCPU": 10}, (), ["rack"]) for number in range(600)]

    def pooled(disk: int) -> FlavorCapacity:
        pool = Spec("pool", None, {"DISK_GB": disk}, [SHARES], ["rack"])
        return counted(build(pool, *hosts), ("resources", "VCPU:3,DISK_GB:20"))

    for disk, fits in ((10_000, 500), (100_000, 1_800)):  # the disk is short, or the CPUs are
        found = pooled(disk)
        assert found.fit == FitBounds(fits, fits)
        assert found.worst is not None
        assert (found.worst.name, found.without_worst) == ("pool", FitBounds(0, 0))


def test_shared_amounts_are_stranded_on_no_host() -> None:
    pool = Spec("pool", None, {"DISK_GB": 1000}, [SHARES], ["rack"])
    stock, used = {"VCPU": 4, "MEMORY_MB": 64}, {"VCPU": 3}
    full = [Spec(f"cn{number}", None, stock, (), ["rack"], used) for number in range(3)]
    (short,) = counted(build(pool, *full), ("resources", "VCPU:2,MEMORY_MB:16,DISK_GB:20")).shortages
    assert (short.classes, short.hosts, short.stranded) == (("VCPU",), 3, {"MEMORY_MB": 192})


def test_hosts_with_a_full_pool_count_and_are_short_of_its_class() -> None:
    pool = Spec("pool", None, {"DISK_GB": 100}, [SHARES], ["rack"], {"DISK_GB": 100})
    hosts = [Spec(f"cn{number}", None, {"VCPU": 8}, (), ["rack"], {"VCPU": 2}) for number in range(2)]
    found = counted(build(pool, *hosts), ("resources", "VCPU:2,DISK_GB:10"))
    assert (found.fit, found.hosts, found.candidate_hosts) == (FitBounds(0, 0), 2, 0)
    (short,) = found.shortages
    assert (short.classes, short.hosts, short.stranded, short.guests) == (("DISK_GB",), 2, {"VCPU": 12}, 6)


def test_where_the_search_is_given_up_the_bound_is_said() -> None:
    """Each guest takes two neighbouring slots of a ring of slots."""
    slots = range(301)
    ways = FlavorFootprints(
        tuple([((slot, 1), ((slot + 1) % 301, 1)) for slot in slots]),
        dict.fromkeys(slots, "VCPU"),
        coupled=False,
    )
    found = pack_guests(ways, (1,) * 301, SearchBudget())
    assert found.lower_bound <= found.upper_bound == 150
    assert found.lower_bound >= 100
