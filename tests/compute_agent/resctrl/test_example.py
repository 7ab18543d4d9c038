"""The example that the package's documentation works out, and the words in it, are true."""

from compute_agent.resctrl.masks import Mask, MaskRules
from compute_agent.resctrl.ways import Move, assign, divide


def test_the_worked_example_of_the_documentation():
    division = divide(MaskRules(Mask.parse("fff")), Mask(), shared_ways=2)
    assert division.pool == Mask.parse("3ff")
    first = assign(division, {}, {"web": 4, "db": 3})
    assert first.masks == {"web": Mask.parse("f"), "db": Mask.parse("70")}
    open_ways = division.open_ways(Mask.union(first.masks.values()))
    assert open_ways == Mask.parse("f80")
    assert open_ways.part(0, 30) == Mask.parse("180")
    then = assign(division, {"db": first.masks["db"]}, {"db": 3, "big": 7})
    assert then.moves == (
        Move("db", Mask.parse("70"), Mask.parse("7")),
        Move("big", Mask(), Mask.parse("3f8")),
    )
    assert not then.refused
