"""Tests that an explanation sees each write since the last one, although it reads a table."""

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.diagnosis.explanation import explain_request
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search.diagnosis.test_against_brute_force import anything, exhaustive, requests_of
from tests.placement.search.snapshots import Spec, build


@exhaustive
@given(anything, st.data())
def test_explanations_after_writes_are_those_of_a_new_read_model(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]], data: st.DataObject
) -> None:
    snapshot, requests = situation[0], requests_of(situation)
    for _ in range(3):
        for request in requests:
            found = explain_request(snapshot, request, SearchBudget())
            assert found == explain_request(ModelSnapshot([*snapshot]), request, SearchBudget())
        snapshot = snapshot.copy()
        provider = data.draw(st.sampled_from([*snapshot]))
        used = {name: data.draw(st.integers(0, each.total)) for name, each in provider.inventories.items()}
        snapshot.put(provider.with_usage(used))


def test_hosts_without_the_class_count_if_a_smaller_amount_of_a_pool_fits() -> None:
    snapshot = build(
        Spec("pool", None, {"DISK_GB": 100}, ["MISC_SHARES_VIA_AGGREGATE"], ["rack"]),
        *(Spec(f"cn{number}", None, {"VCPU": 8}, [], ["rack"]) for number in range(3)),
        Spec("cn4", None, {"VCPU": 8}),
    )
    request = CandidatesRequest((RequestGroup("", {"DISK_GB": 200}),))
    [relaxation] = explain_request(snapshot, request, SearchBudget()).relaxations
    assert ([each.amount for each in relaxation.amounts], relaxation.hosts) == ([100], 4)
