"""Nova writes the same data about PCI cards to this service and to OpenStack Placement."""

import pytest

from tests.openstack.ground import Ground
from tests.openstack.pci_scenario import cloud_with_cards, disagreements, number_cards, play_cards
from tests.openstack.placement import KINDS
from tests.openstack.record import Record
from tests.openstack.table import differences, table


def claims(**cards: str) -> Record:
    """A host with two equal cards, and the card of each guest."""
    inventories = {"CUSTOM_CARD": {"total": 1}}
    providers = {"host": {"parent": None, "inventories": {}}}
    providers |= {name: {"parent": "host", "inventories": inventories} for name in ("host_81", "host_82")}
    allocations = {
        guest.replace("_", " "): {"allocations": {card: {"CUSTOM_CARD": 1}}} for guest, card in cards.items()
    }
    return Record(providers, allocations)


@pytest.mark.slow
@pytest.mark.openstack
def test_same_pci_cards_and_allocations_on_both_services(
    openstack: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    stories = {}
    for kind in KINDS:
        with cloud_with_cards(openstack, kind) as running:
            stories[kind] = list(play_cards(running))
    found = differences(stories["ours"], stories["stock"])
    with capsys.disabled():
        print(table(stories["ours"], stories["stock"]), *found, sep="\n")
    assert found == []
    told = [(kind, step, disagreements(known)) for kind in KINDS for step, known in stories[kind]]
    assert [each for each in told if each[2]] == []


def test_guests_on_other_equal_cards_make_no_difference():
    first = number_cards(claims(a="host_81", b="host_82"), {"host_81": ["a"], "host_82": ["b"]})
    second = number_cards(claims(a="host_82", b="host_81"), {"host_81": ["b"], "host_82": ["a"]})
    assert first == second
    assert first.allocations["a"]["allocations"] == {"host card of a (1)": {"CUSTOM_CARD": 1}}
    assert disagreements(first) == []


def test_a_card_that_only_placement_gave_away_is_a_disagreement():
    known = number_cards(claims(a="host_81"), {"host_82": ["a"]})
    assert disagreements(known) == [
        "host card of a (1): ['a'] in Placement, [] in Nova",
        "host card of nobody (1): [] in Placement, ['a'] in Nova",
    ]


def test_a_guest_keeps_its_card_while_it_moves():
    assert disagreements(number_cards(claims(move_of_a="host_82"), {"host_82": ["a"]})) == []
