"""What the definition of a domain says of CPU limits and memory, and which of it is the agent's."""

import pytest

from compute_agent.drivers.base import CpuLimits
from compute_agent.drivers.libvirt.definition import (
    NAMESPACE,
    Binding,
    Definition,
    note,
    parse_binding,
    parse_definition,
)

EMPTY = "<domain/>"


def domain(cputune="", numatune="", metadata=""):
    return (
        f"<domain><metadata>{metadata}</metadata><cputune>{cputune}</cputune>"
        f"<numatune>{numatune}</numatune></domain>"
    )


def noted(*shares):
    return note(frozenset(shares)).replace("<tuned", f"<agent:tuned xmlns:agent='{NAMESPACE}'")


def test_a_definition_that_says_nothing():
    assert parse_definition(EMPTY, persistent=True) == Definition(persistent=True)
    assert parse_binding(EMPTY) == Binding()
    assert not Binding().is_foreign


def test_text_that_is_no_xml_is_refused():
    with pytest.raises(ValueError, match="not XML"):
        parse_definition("domain", persistent=True)


@pytest.mark.parametrize(
    ("shares", "metadata", "foreign"),
    [
        ("<shares>2048</shares>", "", True),
        ("<shares>2048</shares>", noted(2048), False),
        ("<shares>2048</shares>", noted(1024, 2048), False),
        ("<shares>300</shares>", noted(2048), True),
        ("<shares>0</shares>", "", False),
        ("", noted(2048), False),
        ("<shares>2048</shares>", "<tuned shares='2048'/>", True),
        ("<shares>2048</shares>", noted(2048).replace("2048", "x,2048,"), False),
        ("<shares>2048</shares>", f"<tuned xmlns='{NAMESPACE}'/>", True),
    ],
)
def test_shares_are_somebody_elses_unless_they_are_noted(shares, metadata, foreign):
    found = parse_definition(domain(shares, metadata=metadata), persistent=True)
    assert found.has_foreign_shares is foreign
    assert found.within(CpuLimits(400)) == CpuLimits(None if foreign else 400)


@pytest.mark.parametrize(
    ("cputune", "persistent", "quota"),
    [
        ("<global_quota>50000</global_quota>", True, 0.5),
        ("<global_period>50000</global_period><global_quota>50000</global_quota>", True, 1.0),
        ("<global_quota>-1</global_quota>", True, None),
        ("<global_quota>0</global_quota>", True, None),
        ("<global_quota>50000</global_quota>", False, None),  # it may be the agent's
        ("<period>100000</period><quota>50000</quota>", True, None),  # that of each guest CPU
    ],
)
def test_a_quota_of_the_whole_domain_counts_where_it_is_defined(cputune, persistent, quota):
    assert parse_definition(domain(cputune), persistent).quota == quota


def test_the_lower_quota_counts():
    definition = Definition(quota=0.5)
    limits = [definition.within(CpuLimits(quota=quota)).quota for quota in (None, 0.3, 0.9)]
    assert limits == [0.5, 0.3, 0.5]
    assert Definition().within(CpuLimits(200, 0.3)) == CpuLimits(200, 0.3)


@pytest.mark.parametrize(
    ("memory", "binding", "foreign"),
    [
        ("<memory mode='restrictive' nodeset='0-1,3'/>", Binding("restrictive", frozenset({0, 1, 3})), False),
        ("<memory nodeset='1'/>", Binding("strict", frozenset({1})), True),
        ("<memory mode='interleave' nodeset='0'/>", Binding("interleave", frozenset({0})), True),
        ("<memory mode='strict' placement='auto'/>", Binding("strict"), True),
    ],
)
def test_memory_is_somebody_elses_unless_it_is_restrictive(memory, binding, foreign):
    found = parse_binding(domain(numatune=memory))
    assert found == binding == parse_definition(domain(numatune=memory), persistent=True).binding
    assert found.is_foreign is foreign
