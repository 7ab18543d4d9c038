"""Tests of CPU limits, pins and memory in a domain's definition, set by the agent or by another program."""

from dataclasses import replace

import pytest

from compute_agent.drivers.base import CpuLimits, CpuSettings
from compute_agent.drivers.libvirt.domain_definition import (
    NAMESPACE,
    DomainDefinition,
    MemoryBinding,
    note_element,
    parse_binding,
    parse_definition,
)
from compute_agent.drivers.libvirt.domain_metadata import with_pins
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadRole
from compute_agent.model.guest import PlacementConstraints

EMPTY = "<domain/>"


def domain(cputune="", numatune="", metadata=""):
    return (
        f"<domain><metadata>{metadata}</metadata><cputune>{cputune}</cputune>"
        f"<numatune>{numatune}</numatune></domain>"
    )


def noted(*shares):
    return note_element(frozenset(shares)).replace("<tuned", f"<agent:tuned xmlns:agent='{NAMESPACE}'")


def test_an_empty_definition_has_no_limits():
    assert parse_definition(EMPTY, persistent=True) == DomainDefinition(persistent=True)
    assert parse_binding(EMPTY) == MemoryBinding()
    assert not MemoryBinding().is_foreign


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
        ("<shares>2048</shares>", noted(2048).replace("2048", "9" * 5000 + ",2048"), False),
        ("<shares>2048</shares>", noted(2048).replace("2048", "9" * 5000), True),
        ("<shares>2048</shares>", noted(2048).replace("2048", "٢٠٤٨"), True),
        ("<shares>2048</shares>", noted(2048).replace("2048", "1," * 1000 + "2048"), True),
        ("<shares>2048</shares>", f"<tuned xmlns='{NAMESPACE}'/>", True),
    ],
)
def test_shares_are_foreign_unless_the_note_has_them(shares, metadata, foreign):
    found = parse_definition(domain(shares, metadata=metadata), persistent=True)
    assert found.has_foreign_shares is foreign
    assert found.limits_within(CpuLimits(400)) == CpuLimits(None if foreign else 400)


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
    definition = DomainDefinition(quota=0.5)
    limits = [definition.limits_within(CpuLimits(quota=quota)).quota for quota in (None, 0.3, 0.9)]
    assert limits == [0.5, 0.3, 0.5]
    assert DomainDefinition().limits_within(CpuLimits(200, 0.3)) == CpuLimits(200, 0.3)


@pytest.mark.parametrize(
    ("memory", "binding", "foreign"),
    [
        (
            "<memory mode='restrictive' nodeset='0-1,3'/>",
            MemoryBinding("restrictive", frozenset({0, 1, 3})),
            False,
        ),
        ("<memory nodeset='1'/>", MemoryBinding("strict", frozenset({1})), True),
        ("<memory mode='interleave' nodeset='0'/>", MemoryBinding("interleave", frozenset({0})), True),
        ("<memory mode='strict' placement='auto'/>", MemoryBinding("strict"), True),
    ],
)
def test_memory_is_foreign_unless_its_mode_is_restrictive(memory, binding, foreign):
    found = parse_binding(domain(numatune=memory))
    assert found == binding == parse_definition(domain(numatune=memory), persistent=True).binding
    assert found.is_foreign is foreign


VCPUS = "<vcpu {}>2</vcpu><iothreads>1</iothreads><iothreadids><iothread id='3'/></iothreadids>"
ZERO, ONE, HOST = frozenset({0}), frozenset({1}), frozenset({0, 1, 2, 3})
FIRST, SECOND, IO = ThreadRole(vcpu=0), ThreadRole(vcpu=1), ThreadRole(iothread=3)
APART = CpuSettings((ZERO, ONE), frozenset({2, 3}))


def pinned(cputune, vcpu=""):
    return domain(cputune).replace("<cputune>", f"{VCPUS.format(vcpu)}<cputune>")


@pytest.mark.parametrize(
    ("vcpu", "cputune", "pins"),
    [
        ("", "", {FIRST: None, SECOND: None, IO: None, EMULATOR: None}),
        ("cpuset='0-1'", "", dict.fromkeys([FIRST, SECOND, IO, EMULATOR], frozenset({0, 1}))),
        (
            "cpuset='3'",
            "<vcpupin vcpu='1' cpuset='1'/><emulatorpin cpuset='0,2-3'/>",
            {FIRST: frozenset({3}), SECOND: ONE, IO: frozenset({3}), EMULATOR: frozenset({0, 2, 3})},
        ),
        (
            "",
            "<vcpupin vcpu='0' cpuset='0'/><vcpupin vcpu='7' cpuset='0'/><shares>10</shares>"
            "<iothreadpin iothread='3' cpuset='1'/><iothreadpin iothread='9' cpuset='1'/>",
            {FIRST: ZERO, SECOND: None, IO: ONE, EMULATOR: None},
        ),
    ],
)
def test_pins_of_what_a_domain_has_with_what_counts_without_one(vcpu, cputune, pins):
    assert parse_definition(pinned(cputune, vcpu), persistent=True).pins == pins
    assert parse_definition(pinned(cputune, vcpu), persistent=False).pins == {}


def test_io_threads_have_the_numbers_that_libvirt_gives_them():
    xml = "<domain><vcpu>1</vcpu><iothreads>4</iothreads>{}</domain>"
    for ids, numbers in (("", [1, 2, 3, 4]), ("<iothread id='2'/><iothread id='7'/>", [2, 7, 1, 3])):
        found = parse_definition(xml.format(f"<iothreadids>{ids}</iothreadids>"), persistent=True).pins
        assert [role.iothread for role in found if role.iothread is not None] == numbers


def test_pins_differ_where_the_cpus_that_the_host_has_do():
    none = parse_definition(pinned(""), persistent=True)
    assert none.other_pins(APART, HOST) == {FIRST: ZERO, SECOND: ONE, IO: {2, 3}, EMULATOR: {2, 3}}
    everywhere = CpuSettings((HOST, HOST), HOST | {63})
    assert none.other_pins(everywhere, HOST) == {}
    cputune = "<vcpupin vcpu='0' cpuset='0'/><vcpupin vcpu='1' cpuset='0'/><emulatorpin cpuset='2-3'/>"
    noted = replace(parse_definition(pinned(cputune), persistent=True), own=None)
    assert noted.other_pins(APART, HOST) == {
        SECOND: ONE,
        IO: {2, 3},
    }


def test_changed_fields_are_named():
    before = DomainDefinition(persistent=True, shares=300)
    assert before.changed_fields(before) == ()
    assert before.changed_fields(DomainDefinition(persistent=True, quota=0.5)) == ("shares", "quota")


class TestDemands:
    """Pins by another program are demands, and stay unchanged."""

    HOST = frozenset(range(4))
    PINS = "<vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='2-3'/><emulatorpin cpuset='0-3'/>"

    def definition(self, note=""):
        xml = f"<domain><vcpu>2</vcpu><cputune>{self.PINS}</cputune><metadata>{note}</metadata></domain>"
        return parse_definition(xml, persistent=True)

    def noted(self, *pins):
        return note_element(frozenset(), pins).replace("<tuned", f"<agent:tuned xmlns:agent='{NAMESPACE}'")

    def test_pins_without_a_note_are_demands_except_those_to_all_cpus(self):
        found = self.definition().demanded_pins(self.HOST)
        assert found == {FIRST: frozenset({1}), SECOND: frozenset({2, 3})}

    def test_a_pin_to_the_cpus_of_the_whole_domain_is_no_demand(self):
        xml = f"<domain><vcpu cpuset='1'>2</vcpu><cputune>{self.PINS.partition('>')[0]}></cputune></domain>"
        assert parse_definition(xml, persistent=True).demanded_pins(self.HOST) == {FIRST: frozenset({1})}

    def test_noted_pins_are_the_agents(self):
        definition = self.definition(self.noted((FIRST, frozenset({1})), (SECOND, frozenset({0}))))
        assert definition.demanded_pins(self.HOST) == {SECOND: frozenset({2, 3})}
        assert definition.own_pins == {(FIRST, frozenset({1}))}

    def test_a_note_of_an_earlier_release_makes_all_pins_the_agents(self):
        definition = self.definition(f"<agent:tuned xmlns:agent='{NAMESPACE}' shares='1024'/>")
        assert definition.demanded_pins(self.HOST) == {}
        assert definition.own_pins >= {(FIRST, frozenset({1})), (SECOND, frozenset({2, 3}))}

    @pytest.mark.parametrize(
        "text", ["x=1", "0=3-1", "0=1;1=2-3", "-1=1", "9" * 9999 + "=1", "0=" + "9," * 9999, ""]
    )
    def test_an_invalid_note_makes_no_pin_the_agents(self, text):
        noted = f"<agent:tuned xmlns:agent='{NAMESPACE}' pins='{text}'/>"
        assert self.definition(noted).demanded_pins(self.HOST).keys() == {FIRST, SECOND}

    def test_demands_are_not_overwritten(self):
        settings = CpuSettings((frozenset({1}), frozenset({2})), frozenset({0}))
        assert self.definition().other_pins(settings, self.HOST) == {EMULATOR: frozenset({0})}

    def test_noted_pins_are_read_back(self):
        pins = {(FIRST, frozenset({1})), (IO, frozenset({0, 2})), (EMULATOR, frozenset({3}))}
        assert self.definition(self.noted(*pins)).own == pins
        assert note_element(frozenset({7}), pins) == "<tuned shares='7' pins='0=1 e=3 i3=0,2'/>"

    def test_demands_limit_guest_cpus_and_emulator(self):
        demanded = {SECOND: frozenset({2, 3}), EMULATOR: frozenset({0}), IO: frozenset({1})}
        found = with_pins(PlacementConstraints(frozenset({1})), demanded)
        assert found == PlacementConstraints(frozenset({1}), (), ((1, frozenset({2, 3})),), frozenset({0}))
