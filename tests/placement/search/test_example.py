"""Tests that the worked example in the documentation of `placement.search` is right."""

from urllib.parse import parse_qsl

from placement import search
from placement.microversion import MAX
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search.candidate_search import find_candidates
from tests.placement.search.asking import ask
from tests.placement.search.snapshots import Spec, build

_INDENT = " " * 8


def literal(document: str | None) -> list[str]:
    """The indented lines of a document."""
    lines = (document or "").splitlines()
    return [line.removeprefix(_INDENT) for line in lines if line.startswith(_INDENT)]


def hosts() -> ModelSnapshot:
    specs: list[Spec] = []
    for name, disk_used, first_used, second_used in (("cn1", 0, 5, 0), ("cn2", 0, 0, 0), ("cn3", 10, 0, 2)):
        specs += [
            Spec(name, None, {"DISK_GB": 100}, used={"DISK_GB": disk_used}),
            Spec(f"{name}_0", name, {"VCPU": 8}, used={"VCPU": first_used}),
            Spec(f"{name}_1", name, {"VCPU": 8}, used={"VCPU": second_used}),
        ]
    return build(*specs)


def count_searched(query: str) -> int:
    """Return the number of trees that were searched: the other trees get the same batches of patterns."""
    request = parse_candidates(parse_qsl(query), MAX)
    return len({batch for _, batch in find_candidates(hosts(), request)})


def test_the_example_has_these_candidates_and_searches_two_trees() -> None:
    query, *candidates = literal(search.__doc__)
    assert ask(hosts(), query) == candidates
    assert count_searched(query) == 2


def test_free_amounts_are_those_of_the_example() -> None:
    document = search.__doc__ or ""
    found = ", ".join(str(tree.free) for tree in hosts().whole_trees().values())
    assert found.replace(", (90", " and (90") in " ".join(document.split())


def test_a_contested_class_sets_the_third_tree_apart() -> None:
    query, *_ = literal(search.__doc__)
    assert count_searched(f"{query}&resources_CPU2=VCPU:4&group_policy=none") == 3
