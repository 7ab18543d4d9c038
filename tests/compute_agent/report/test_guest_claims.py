"""Tests of the amounts of claims, of their notes, and of the claims that are the agent's own."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent import kept_json
from compute_agent.host.kernel_files import read_host_id
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.kept_json import split_notes
from compute_agent.model.guest import ConsumerAllocations
from compute_agent.model.guest_settings import EmulatorPolicy, GuestSettings
from compute_agent.report.guest_claims import (
    CLAIM_NOTES,
    CLAIM_TYPE,
    ClaimNote,
    claim_query,
    claimed_amounts,
    is_own_claim,
)
from compute_agent.report.history import ConsumerOwner

UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
NOTE = ClaimNote(UUID, "db", "podman", "1" * 64, ConsumerOwner("p", "u", CLAIM_TYPE), {"PCPU": 2})
OWN = NOTE.as_consumer(1)
TEXTS = st.text(max_size=5)
AMOUNTS = st.dictionaries(TEXTS, st.integers(0, (1 << 31) - 1), max_size=3)
NOTES = st.builds(
    ClaimNote,
    st.uuids().map(str),
    TEXTS,
    TEXTS,
    TEXTS,
    st.builds(ConsumerOwner, TEXTS, TEXTS, TEXTS),
    AMOUNTS,
    AMOUNTS,
    machine=TEXTS,
)


@pytest.mark.parametrize(
    ("settings", "memory", "amounts"),
    [
        (GuestSettings(4, qos_class="LSR"), 100, {"PCPU": 4, "MEMORY_MB": 100}),
        (GuestSettings(4, EmulatorPolicy.SHARE, qos_class="BE"), 0, {"VCPU": 4}),
        (GuestSettings(4, emulator_policy=EmulatorPolicy.ISOLATE, qos_class="LSR"), 0, {"PCPU": 5}),
        (GuestSettings(4, emulator_policy=EmulatorPolicy.ISOLATE), 0, {"VCPU": 4}),
    ],
)
def test_the_class_decides_the_kind_of_cpus(settings, memory, amounts):
    assert claimed_amounts(settings, ["LSR"], memory) == amounts


def tree(*classes):
    """A root provider and a child, with inventories of these classes."""
    nodes = [
        ProviderNode(
            name,
            name,
            None if name == "root" else "root",
            inventories={it: ProviderInventory(9) for it in each},
        )
        for name, each in zip(("root", "child"), classes, strict=True)
    ]
    return ProviderTree(tuple(nodes))


@pytest.mark.parametrize(
    ("classes", "query"),
    [
        ((("MEMORY_MB",), ("PCPU",)), "resources=MEMORY_MB:5,PCPU:2"),
        (((), ("PCPU", "MEMORY_MB")), "resources1=MEMORY_MB:5,PCPU:2"),
    ],
)
def test_amounts_come_from_one_provider_where_one_has_all_classes(classes, query):
    assert claim_query({"PCPU": 2, "MEMORY_MB": 5}, tree(*classes)) == query


@pytest.mark.parametrize(
    ("record", "own"),
    [
        (replace(OWN, resources={"a": {"PCPU": 2}}), True),
        (replace(OWN, resources={"a": {"PCPU": 1}, "b": {"PCPU": 1}}), True),
        (replace(OWN, resources={"a": {"VCPU": 1}}), True),
        (replace(OWN, resources={"a": {"PCPU": 3}}), False),
        (replace(OWN, resources={"a": {"PCPU": 2, "VCPU": 1}}), False),
        (replace(OWN, resources={"a": {"PCPU": 2}}, user_id="other"), False),
        (replace(OWN, resources={"a": {"PCPU": 2}}, consumer_type="INSTANCE"), False),
        (replace(OWN, resources={"a": {"PCPU": 2}}, consumer_type=None), False),
        (replace(OWN, resources={"elsewhere": {"PCPU": 2}}), False),
    ],
)
def test_a_claim_is_own_by_owner_type_amounts_and_host(record, own):
    here = {uuid: amounts for uuid, amounts in record.resources.items() if uuid != "elsewhere"}
    assert is_own_claim(replace(NOTE, former={"VCPU": 1}), record, here) is own


def test_a_consumer_without_an_allocation_is_nobodys():
    assert not is_own_claim(NOTE, ConsumerAllocations(UUID), {})


@given(st.lists(NOTES, max_size=3, unique_by=lambda note: note.guest_uuid))
def test_notes_are_read_as_they_were_written(notes):
    assert list(CLAIM_NOTES.parse(CLAIM_NOTES.dump(notes)).values()) == notes


@pytest.mark.parametrize(
    ("noted", "machine", "is_own"),
    [("1", "1", True), ("1", "2", False), ("", "2", True), ("1", "", True), ("", "", True)],
)
def test_notes_of_another_host_are_not_this_hosts(noted, machine, is_own):
    notes = {UUID: replace(NOTE, machine=noted)}
    own, foreign = split_notes(notes, machine)
    assert (set(own), set(foreign)) == (({UUID}, set()) if is_own else (set(), {UUID}))
    assert not is_own or own[UUID] == NOTE


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [
        (("a" * 32, "one"), ("a" * 32, "one"), True),
        (("a" * 32, "one"), ("a" * 32, "two"), False),
        (("a" * 32, "one"), ("b" * 32, "one"), False),
        (("", "one"), ("uninitialized", "one"), True),
        (("", "one"), ("", "two"), False),
        (("a" * 32, ""), ("b" * 32, ""), False),
    ],
)
def test_hosts_made_from_one_image_are_told_apart_by_their_names(first, second, are_equal, tmp_path):
    found = []
    for number, files in enumerate((first, second)):
        folder = tmp_path / str(number) / "etc"
        folder.mkdir(parents=True)
        for name, text in zip(("machine-id", "hostname"), files, strict=True):
            (folder / name).write_text(f"{text}\n")
        found.append(read_host_id(folder.parent))
    assert (found[0] == found[1]) is are_equal
    assert all(len(one) == 32 for one in found)


def test_a_host_without_an_id_and_a_name_is_not_told_apart(tmp_path):
    assert read_host_id(tmp_path) == ""


def test_notes_of_an_older_agent_have_no_host():
    rows = json.loads(CLAIM_NOTES.dump([NOTE]))["data"]
    del rows[0]["machine"]
    assert CLAIM_NOTES.parse(kept_json.dump(1, kept_json.checked_content(rows))) == {UUID: NOTE}


@given(st.data())
def test_damaged_notes_are_an_error(data):
    content = CLAIM_NOTES.dump([NOTE])
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    with contextlib.suppress(ValueError):
        assert CLAIM_NOTES.parse(damaged) == {UUID: NOTE}
