"""Tests that the example in the documentation of the package is right."""

from compute_agent.resctrl.schemata import MaskRules, WayMask
from compute_agent.resctrl.ways import MaskMove, assign_ways, partition_ways


def test_the_worked_example_of_the_documentation():
    division = partition_ways(MaskRules(WayMask.parse_hex("fff")), WayMask(), shared_ways=2)
    assert division.pool == WayMask.parse_hex("3ff")
    first = assign_ways(division, {}, {"web": 4, "db": 3})
    assert first.masks == {"web": WayMask.parse_hex("f"), "db": WayMask.parse_hex("70")}
    open_ways = division.open_ways(WayMask.union_of(first.masks.values()))
    assert open_ways == WayMask.parse_hex("f80")
    assert open_ways.percent_range(0, 30) == WayMask.parse_hex("180")
    then = assign_ways(division, {"db": first.masks["db"]}, {"db": 3, "big": 7})
    assert then.moves == (
        MaskMove("db", WayMask.parse_hex("70"), WayMask.parse_hex("7")),
        MaskMove("big", WayMask(), WayMask.parse_hex("3f8")),
    )
    assert not then.refused
