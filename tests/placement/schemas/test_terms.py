"""Tests of the values in query strings, and of the messages by which wrong values are refused."""

import pytest

from placement import microversion
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas.terms import parse_in_tree, parse_member_of, parse_required, parse_resources

A, B = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
NEWEST = (1, 39)


def one(*names: str) -> frozenset[str]:
    return frozenset(names)


def test_resources_are_amounts_by_class_of_which_the_last_counts() -> None:
    assert parse_resources("VCPU:2,MEMORY_MB:1024,VCPU:3") == {"VCPU": 3, "MEMORY_MB": 1024}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" ", "Got: empty string"),
        ("VCPU", "Got: VCPU"),
        ("VCPU:1:2", "Got: VCPU:1:2"),
        ("VCPU:two", "VCPU expected positive integer amount. Got: two"),
        ("VCPU:0", "VCPU requires amount >= 1. Got: 0"),
        ("VCPU:1,", "Badly formed resources parameter"),
    ],
)
def test_resources_that_are_none_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_resources(text)


def test_traits_are_demanded_forbidden_and_chosen_from() -> None:
    assert parse_required(["T1,!T2,T3", "in:T4,T5"], NEWEST) == (
        (one("T1"), one("T3"), one("T4", "T5")),
        one("T2"),
    )


def test_before_any_traits_the_last_of_several_counts() -> None:
    assert parse_required(["T1", "T2"], (1, 38)) == ((one("T2"),), one())


@pytest.mark.parametrize(
    ("text", "version", "words"),
    [
        ("in:T1,T2", (1, 38), "only supported since microversion 1.39"),
        ("in:T1,!T2", NEWEST, "does not support forbidden traits"),
        ("T1,", NEWEST, "Got an empty trait in: T1,"),
        ("!", NEWEST, "Got an empty trait in: !"),
        ("!T1", (1, 21), "parameter value of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: !T1"),
    ],
)
def test_traits_that_a_version_does_not_know_are_refused(
    text: str, version: Microversion, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_required([text], version)


def test_aggregates_are_to_be_in_and_not_to_be_in() -> None:
    read = parse_member_of([f"in:{A},{B}", A.upper(), f"!in:{B}"], NEWEST)
    assert read == ((one(A, B), one(A)), one(B))


@pytest.mark.parametrize(
    ("values", "version", "words"),
    [
        (
            [A, B],
            (1, microversion.REPEATED_MEMBER_OF[1] - 1),
            "Multiple member_of parameters are not supported",
        ),
        ([f"!{A}"], (1, microversion.FORBIDDEN_AGGREGATES[1] - 1), "Forbidden member_of parameters are not"),
        ([f"{A},{B}"], NEWEST, "must be prefixed with the 'in:'"),
        (["nobody"], NEWEST, "Expected 'member_of' parameter to contain valid UUID"),
        ([f"in:{A},"], NEWEST, "Expected 'member_of' parameter to contain valid UUID"),
    ],
)
def test_aggregates_that_are_none_are_refused(values: list[str], version: Microversion, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_member_of(values, version)


def test_a_tree_is_named_by_a_uuid_in_any_spelling() -> None:
    assert parse_in_tree(A.replace("-", "").upper()) == A
    with pytest.raises(InvalidRequest, match="Expected 'in_tree' parameter to be a format of uuid"):
        parse_in_tree("host7")
