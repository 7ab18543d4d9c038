"""Tests of numbers that hosts have for an attribute, computed from attributes of their providers."""

from dataclasses import replace

from placement.read_model.provider import Attribute
from placement.read_model.snapshot import DISTANCE, ModelSnapshot
from tests.placement.search.snapshots import Spec, build, name_to_uuid


def tell(snapshot: ModelSnapshot, name: str, **attributes: Attribute) -> None:
    provider = snapshot.get(name_to_uuid(name))
    assert provider is not None
    told = {DISTANCE + name_to_uuid(other): value for other, value in attributes.items()}
    snapshot.put(replace(provider, attributes=told))


def test_distances_come_from_the_attributes_of_zones() -> None:
    snapshot = build(Spec("a"), Spec("a0", "a"), Spec("a1", "a"), Spec("b"), Spec("b0", "b"))
    tell(snapshot, "a0", a0=10.0, a1=21.0, b0=40.0, nobody=5.0)
    tell(snapshot, "a1", a0=20.0, a1="near")
    assert snapshot.zone_distances() == {(2, 3): 21}
    tell(snapshot, "a1", a0=32.0)
    assert snapshot.zone_distances() == {(2, 3): 32}
    tell(snapshot, "a0")
    snapshot.remove(3)
    assert snapshot.zone_distances() == {}


def test_the_range_of_a_number_follows_changes_but_not_in_copies() -> None:
    snapshot = build(Spec("a"), Spec("b"), Spec("c"))

    def price(name: str, **attributes: Attribute) -> None:
        provider = snapshot.get(name_to_uuid(name))
        assert provider is not None
        snapshot.put(replace(provider, attributes=attributes))

    assert snapshot.attribute_range("price") is None
    price("a", price=3.0)
    price("b", price="dear")
    assert snapshot.attribute_range("price") == (3.0, 3.0)
    price("b", price=-1.0)
    kept, snapshot = snapshot, snapshot.copy()
    assert snapshot.attribute_range("price") == (-1.0, 3.0)
    price("a")
    assert (snapshot.attribute_range("price"), kept.attribute_range("price")) == ((-1.0, -1.0), (-1.0, 3.0))
    snapshot.remove(2)
    assert snapshot.attribute_range("price") is None
