"""Tests of the search for nova-compute's root provider, and of the messages if it is not found."""

from dataclasses import dataclass
from typing import cast

import pytest

from compute_agent.report.client import PlacementClient, ProviderRecord
from compute_agent.report.root_provider import (
    FormerRootError,
    NovaRoot,
    RootMissingError,
    RootSearch,
    find_root,
)

NAME, OWN, NOVAS = "host.example", "own", "novas"
LAST = NovaRoot(NOVAS, "before.example")


@dataclass
class Providers:
    """A client of a Placement with some providers that all have the same traits."""

    there: tuple[ProviderRecord, ...] = ()
    traits: frozenset[str] = frozenset({"COMPUTE_NODE", "COMPUTE_VOLUME_ATTACH"})

    def find(self, search: RootSearch) -> NovaRoot | None:
        return find_root(cast(PlacementClient, _RootClient(self)), search)


@dataclass
class _RootClient:
    providers: Providers

    def provider_record(self, name: str) -> ProviderRecord | None:
        return next((one for one in self.providers.there if one.name == name), None)

    def providers_in_tree(self, uuid: str) -> list[ProviderRecord]:
        return [one for one in self.providers.there if uuid in (one.uuid, one.parent_uuid)]

    def get_traits(self, uuid: str) -> tuple[frozenset[str], int]:
        return self.providers.traits, 1


def root(uuid: str = NOVAS, name: str = NAME, parent: str | None = None) -> ProviderRecord:
    return ProviderRecord(uuid, name, 1, parent)


def test_novas_root_has_the_hypervisors_name() -> None:
    assert Providers((root(),)).find(RootSearch(NAME, OWN, beside=True)) == NovaRoot(NOVAS, NAME)


def test_one_that_was_renamed_is_known_by_its_uuid() -> None:
    there = Providers((root("child", "child", NOVAS), root(name="renamed")))
    assert there.find(RootSearch(NAME, OWN, beside=True, last=LAST)) == NovaRoot(NOVAS, "renamed")


def test_an_agent_that_is_not_beside_nova_has_no_novas_root() -> None:
    assert Providers((root(),)).find(RootSearch(NAME, OWN, beside=False, last=LAST)) is None


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (Providers((root(),)), NovaRoot(NOVAS, NAME)),
        (Providers((root(),), traits=frozenset({"COMPUTE_NODE"})), None),
        (Providers((root(parent="other"),)), None),
        (Providers(), None),
    ],
)
def test_traits_show_the_owner_of_the_root_without_an_option(
    there: Providers, found: NovaRoot | None
) -> None:
    assert there.find(RootSearch(NAME, OWN)) == found


@pytest.mark.parametrize(
    ("search", "hint"),
    [
        (RootSearch(NAME, OWN, beside=True), False),
        (RootSearch(NAME, OWN, beside=True, last=LAST), False),
        (RootSearch(NAME, OWN, last=LAST), True),
    ],
)
def test_one_that_is_not_there_is_waited_for(search: RootSearch, hint: bool) -> None:
    with pytest.raises(
        RootMissingError, match=f"waiting for nova-compute to make the provider {NAME}"
    ) as refusal:
        Providers().find(search)
    assert ("if it is gone for good, set [compute] provider_tree" in str(refusal.value)) is hint


def test_a_child_is_no_root() -> None:
    with pytest.raises(RootMissingError, match="is below another one"):
        Providers((root(parent="other"),)).find(RootSearch(NAME, OWN, beside=True))


def test_a_root_of_the_agent_is_novas_once_nova_keeps_it() -> None:
    search = RootSearch(NAME, OWN, beside=True)
    with pytest.raises(FormerRootError, match="which the agent itself made before"):
        Providers((root(OWN),), traits=frozenset()).find(search)
    assert Providers((root(OWN),)).find(search) == NovaRoot(OWN, NAME)
