"""The measured queries, by world.

Each query is a family: a number after an @ grows by one from member to member, so that a service can get
requests that no client has sent before.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final
from urllib.parse import parse_qsl

from benchmarks.worlds import LLC, MBA, aggregate_uuid, uuid_of
from placement.microversion import MAX
from placement.schemas.candidates import parse_candidates
from placement.search.request import CandidatesRequest

_GROWING: Final = re.compile(r"@(\d+)")
_MEMBERS: Final = 1800


@dataclass(frozen=True, slots=True)
class QueryFamily:
    """One family of GETs. ``goal`` is the factor by which our service should be faster than the reference."""

    name: str
    template: str
    goal: float | None = None

    def path(self, number: int = 0) -> str:
        """Return a member of the family; a small number requests a little more than 0 does."""
        return _GROWING.sub(lambda found: str(int(found[1]) + number), self.template)

    def member_paths(self) -> Iterator[str]:
        """Yield all members in turn; after the last one the first follows again."""
        return map(self.path, cycle(range(_MEMBERS)))

    @property
    def is_limited(self) -> bool:
        """Return whether two right answers may differ, because each may be any part of all candidates."""
        return "limit=" in self.template


def parse_query(path: str) -> CandidatesRequest:
    """Return the request of a path or of a query string, at the newest microversion."""
    return parse_candidates(parse_qsl(path.rpartition("?")[2], keep_blank_values=True), MAX)


def _candidate_query(name: str, *parts: str, goal: float | None = None) -> QueryFamily:
    return QueryFamily(name, "/allocation_candidates?" + "&".join(parts), goal)


def _provider_query(name: str, *parts: str) -> QueryFamily:
    return QueryFamily(name, "/resource_providers?" + "&".join(parts))


_GUEST: Final = ("resources=DISK_GB:@10", "resources_NUMA=VCPU:2,MEMORY_MB:2048", "group_policy=none")
_BOTH: Final = (*_GUEST, "resources_FPGA=FPGA:1", "same_subtree=_NUMA,_FPGA")
_HOST: Final = "resources=VCPU:2,MEMORY_MB:2048,DISK_GB:@20"
_CACHED: Final = (
    "resources=MEMORY_MB:@2048",
    "resources_CPU=PCPU:4",
    f"resources_L3={LLC}:3,{MBA}:20",
    "group_policy=none",
)
_TOGETHER: Final = (*_CACHED, "same_subtree=_CPU,_L3")
_TWO_NODES: Final = (
    "resources=MEMORY_MB:@2048",
    *(
        part
        for node in (0, 1)
        for part in (
            f"resources_CPU{node}=PCPU:2",
            f"resources_L3{node}={LLC}:2,{MBA}:10",
            f"same_subtree=_CPU{node},_L3{node}",
        )
    ),
    "group_policy=isolate",
)


def _device_groups(groups: int) -> tuple[str, ...]:
    each = (f"resources_DEV{number}=PCI_DEVICE:1" for number in range(groups))
    return ("resources=VCPU:@1", *each, "group_policy=isolate", "limit=10")


QUERIES: Final[Mapping[str, Sequence[QueryFamily]]] = {
    "nested": (
        _candidate_query("all candidates", *_GUEST, goal=40),
        _candidate_query("all, same_subtree", *_BOTH),
        _candidate_query("same_subtree, limit=100", *_BOTH, "limit=100"),
        _candidate_query("limit=50", *_GUEST, "limit=50"),
        _candidate_query("trait of a group", *_BOTH, "required_FPGA=CUSTOM_FPGA_INTEL", "limit=100"),
        _candidate_query(
            "any-traits of a group",
            *_BOTH,
            "required_FPGA=in:CUSTOM_FPGA_INTEL,CUSTOM_FPGA_XILINX",
            "limit=100",
        ),
        _candidate_query(
            "forbidden trait of a group", *_BOTH, "required_FPGA=!CUSTOM_FPGA_INTEL", "limit=100"
        ),
        _candidate_query("member_of", *_GUEST, f"member_of={aggregate_uuid(1)}", "limit=100"),
        _candidate_query("in_tree", *_BOTH, f"in_tree={uuid_of('nested-0')}"),
        _candidate_query("root_required", *_GUEST, "root_required=STORAGE_DISK_SSD", "limit=100"),
        _provider_query("providers by resources", "resources=DISK_GB:@2"),
    ),
    "flat": (
        _candidate_query("all candidates", _HOST),
        _candidate_query("limit=100", _HOST, "limit=100", goal=60),
        _candidate_query("required trait", _HOST, "required=STORAGE_DISK_SSD", "limit=100", goal=60),
        _candidate_query("forbidden trait", _HOST, "required=!HW_CPU_X86_AVX512F", "limit=100", goal=60),
        _candidate_query(
            "any-traits", _HOST, "required=in:STORAGE_DISK_SSD,CUSTOM_GOLD", "limit=100", goal=60
        ),
        _candidate_query("member_of", _HOST, f"member_of={aggregate_uuid(1)}", "limit=100", goal=60),
        _candidate_query(
            "member_of any",
            _HOST,
            f"member_of=in:{aggregate_uuid(0)},{aggregate_uuid(2)}",
            "limit=100",
            goal=60,
        ),
        _candidate_query(
            "forbidden aggregate", _HOST, f"member_of=!{aggregate_uuid(1)}", "limit=100", goal=60
        ),
        _candidate_query(
            "traits and aggregate",
            _HOST,
            "required=HW_CPU_X86_AVX2,!CUSTOM_GOLD",
            "required=in:HW_CPU_X86_AVX512F,STORAGE_DISK_SSD",
            f"member_of={aggregate_uuid(1)}",
            "limit=100",
            goal=60,
        ),
        _provider_query(
            "providers by all",
            "resources=DISK_GB:@2",
            "required=STORAGE_DISK_SSD",
            f"member_of={aggregate_uuid(0)}",
        ),
    ),
    "numa": (
        _candidate_query("all, same_subtree", *_TOGETHER),
        _candidate_query("limit=100", *_CACHED, "limit=100", goal=60),
        _candidate_query("same_subtree", *_TOGETHER, "limit=100", goal=60),
        _candidate_query("two nodes, isolated", *_TWO_NODES, "limit=100", goal=60),
        _candidate_query(
            "root_required", *_TOGETHER, "root_required=CUSTOM_RESCTRL_L3_CAT", "limit=100", goal=60
        ),
        _candidate_query(
            "member_of",
            *_TOGETHER,
            f"member_of={aggregate_uuid(1)}",
            "limit=100",
            goal=60,
        ),
        _candidate_query(
            "none has so many", "resources=MEMORY_MB:@2048", "resources_CPU=PCPU:25", "limit=100"
        ),
        _candidate_query(
            "shared CPUs",
            _HOST,
            f"member_of={aggregate_uuid(1)}",
            "limit=100",
            goal=60,
        ),
        _candidate_query(
            "forbidden root", *_TOGETHER, "root_required=!CUSTOM_RESCTRL_L3_CAT", "limit=100", goal=60
        ),
    ),
    "wide": tuple(
        _candidate_query(f"{groups} groups of one", *_device_groups(groups)) for groups in (3, 4, 8)
    ),
}

#: the query of a guest that is scheduled end to end, by world
SCHEDULING: Final[Mapping[str, QueryFamily]] = {
    "nested": _candidate_query("", *_GUEST, "limit=50"),
    "flat": _candidate_query("", _HOST, "limit=50"),
    "numa": _candidate_query("", *_TOGETHER, "limit=50"),
}
