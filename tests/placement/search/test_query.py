"""Tests of parsing query strings by microversion, and of the errors of wrong ones."""

from urllib.parse import parse_qsl

import pytest

from placement.exceptions import BAD_VALUE, DUPLICATE_KEY, MISSING_VALUE, UNDEFINED, InvalidRequest
from placement.schemas.candidates import parse_candidates
from placement.schemas.query import (
    TraitsFilter,
    UsagesFilter,
    parse_provider_filter,
    parse_traits,
    parse_usages,
)
from placement.search.request import CandidatesRequest, ProviderFilter, RequestGroup, check_names

A = "0dd4ca4e-7a1e-4c5f-9d4f-3a4b6a1c9b6a"
B = "9b2d1d5c-2c3e-4f0a-8a5b-7d6e5f4a3b2c"

PARSERS = {
    "/allocation_candidates": parse_candidates,
    "/resource_providers": parse_provider_filter,
    "/usages": parse_usages,
    "/traits": parse_traits,
}

RESOURCES_FORM = (
    "Badly formed resources parameter. Expected resources query string parameter in form: "
    "?resources=VCPU:2,MEMORY_MB:1024. Got: "
)
PREFIX = "Invalid query string parameters: "
NUMBERED = "'^member_of([1-9][0-9]*)?$', '^required([1-9][0-9]*)?$', '^resources([1-9][0-9]*)?$'"
NAMED = ", ".join(
    f"'^{kind}([a-zA-Z0-9_-]{{1,64}})?$'" for kind in ("in_tree", "member_of", "required", "resources")
)


def parse(minor: int, url: str) -> object:
    path, _, query = url.partition("?")
    return PARSERS[path](parse_qsl(query, keep_blank_values=True), (1, minor))


def candidates(minor: int, query: str) -> CandidatesRequest:
    return parse_candidates(parse_qsl(query, keep_blank_values=True), (1, minor))


def group(minor: int, query: str) -> RequestGroup:
    (only,) = candidates(minor, query).groups
    return only


#: microversion, query string, part of the error text, and the error code if it is a special code
WRONG_CANDIDATES: list[tuple[int, str, str, *tuple[str, ...]]] = [
    (10, "resources=", RESOURCES_FORM + "empty string."),
    (10, "resources=VCPU", RESOURCES_FORM + "VCPU."),
    (10, "resources=VCPU:1,", RESOURCES_FORM + "."),
    (10, "resources=VCPU:1:2", RESOURCES_FORM + "VCPU:1:2."),
    (
        10,
        "resources=VCPU:",
        "Requested resource VCPU expected positive integer amount. Got: .",
    ),
    (
        10,
        "resources=VCPU:1.5",
        "Requested resource VCPU expected positive integer amount. Got: 1.5.",
    ),
    (
        10,
        "resources=VCPU:" + "9" * 5000,
        "Requested resource VCPU expected positive integer amount. Got: " + "9" * 5000 + ".",
    ),
    (10, "resources=VCPU:0", "Requested resource VCPU requires amount >= 1. Got: 0."),
    (10, "resources=VCPU:-2", "Requested resource VCPU requires amount >= 1. Got: -2."),
    (10, "", PREFIX + "'resources' is a required property"),
    (
        15,
        "resources=VCPU:1&limit=5",
        "Additional properties are not allowed ('limit' was unexpected)",
    ),
    (16, "resources=VCPU:1&limit=cow", PREFIX + "'cow' does not match '^[1-9][0-9]*$'"),
    (16, "resources=VCPU:1&limit=cow", "Failed validating 'pattern'"),
    (16, "resources=VCPU:1&limit=-99", "Failed validating 'pattern'"),
    (16, "resources=VCPU:1&limit=0", "Failed validating 'pattern'"),
    (16, "resources=VCPU:1&limit=cow&limit=5", "Failed validating 'pattern'"),
    (16, "resources=VCPU:1&limit=5&limit=cow", "Failed validating 'pattern'"),
    (16, "resources=VCPU:1&required=T", "'required' was unexpected"),
    (
        17,
        "resources=VCPU:1&required=",
        "Expected 'required' parameter value of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. "
        "Got an empty trait in: ",
    ),
    (
        17,
        "resources=VCPU:1&required=,,",
        "HW_CPU_X86_VMX,CUSTOM_MAGIC. Got an empty trait in: ,,",
    ),
    (
        17,
        "resources=VCPU:1&required=!T",
        PREFIX + "Expected 'required' parameter value of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: !T",
    ),
    (
        22,
        "resources=VCPU:1&required=T,!",
        "HW_CPU_X86_VMX,!CUSTOM_MAGIC. Got an empty trait in: T,!",
    ),
    (
        22,
        "resources=VCPU:1&required=T,!T",
        "Conflicting required and forbidden traits found in the following traits keys: required: (T)",
    ),
    (
        38,
        "resources=VCPU:1&required=in:T,U",
        PREFIX
        + "The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' only supported since microversion 1.39. Got: in:T,U",
    ),
    (
        39,
        "resources=VCPU:1&required=in:T,!U",
        "The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' does not support forbidden traits. Got: in:T,!U",
    ),
    (
        39,
        "resources=VCPU:1&required=in:",
        "form: in:HW_CPU_X86_VMX,CUSTOM_MAGIC. Got an empty trait",
    ),
    (
        39,
        "resources1=VCPU:1&required1=T&required1=in:U,V&required1=!T,!U,!V",
        "found in the following traits keys: required1: (T), required1: (U, V)",
    ),
    (18, f"resources=VCPU:1&member_of=in:{A}", "'member_of' was unexpected"),
    (
        21,
        "resources=VCPU:1&member_of=INVALID_UUID",
        PREFIX + "Expected 'member_of' parameter to contain valid UUID(s). Got: INVALID_UUID",
    ),
    (21, f"resources=VCPU:1&member_of=in:{A},x", "to contain valid UUID(s). Got: x"),
    (21, "resources=VCPU:1&member_of=in:", "to contain valid UUID(s). Got: "),
    (
        21,
        f"resources=VCPU:1&member_of={A},{B}",
        "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword using the valid "
        f"microversion. Got: {A},{B}",
    ),
    (
        23,
        f"resources=VCPU:1&member_of={A}&member_of={B}",
        "Multiple member_of parameters are not supported",
    ),
    (
        31,
        f"resources=VCPU:1&member_of=!{A}",
        "Forbidden member_of parameters are not supported",
    ),
    (
        31,
        f"resources=VCPU:1&member_of=!in:{A}",
        "Forbidden member_of parameters are not supported",
    ),
    (32, f"resources=VCPU:1&member_of=in:{A},!{B}", "to contain valid UUID(s). Got: !" + B),
    (24, "resources=VCPU:1&resources1=VCPU:1", "'resources1' was unexpected"),
    (24, "resources=VCPU:1&group_policy=none", "'group_policy' was unexpected"),
    (
        25,
        "resources01=VCPU:1",
        PREFIX + f"'resources01' does not match any of the regexes: {NUMBERED}",
    ),
    (25, "resources01=VCPU:1&a=1", "'a', 'resources01' do not match any of the regexes: "),
    (33, "resources1@=VCPU:1", f"'resources1@' does not match any of the regexes: {NAMED}"),
    (33, f"resources{'x' * 65}=VCPU:1", "does not match any of the regexes"),
    (25, "resources=VCPU:1&group_policy=bogus", "'bogus' is not one of ['none', 'isolate']"),
    (
        25,
        "resources1=VCPU:1&resources2=VCPU:1",
        'The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.',
    ),
    (
        25,
        "required=FOO&required1=BAR",
        "All traits parameters must be associated with resources.  "
        "Found the following orphaned traits keys: required, required1",
    ),
    (
        25,
        f"member_of={A}&member_of3={B}",
        "All member_of parameters must be associated with resources. "
        "Found the following orphaned member_of keys: member_of, member_of3",
    ),
    (31, f"resources=VCPU:1&in_tree1={A}", "All request groups must specify resources."),
    (
        25,
        "group_policy=isolate",
        "At least one request group (`resources` or `resources{$S}`) is required.",
    ),
    (30, f"resources=VCPU:1&in_tree={A}", "'in_tree' does not match any of the regexes"),
    (
        31,
        "resources=VCPU:1&in_tree=life",
        "Expected 'in_tree' parameter to be a format of uuid. Got: life",
    ),
    (
        34,
        "resources=VCPU:1&root_required=T",
        "'root_required' does not match any of the regexes",
    ),
    (
        35,
        "resources=VCPU:1&root_required=T,U,!T",
        "Conflicting required and forbidden traits found in root_required: T",
        BAD_VALUE,
    ),
    (
        35,
        "resources=VCPU:1&root_required=T&root_required=!U",
        "Query parameter 'root_required' may be specified only once.",
        DUPLICATE_KEY,
    ),
    (
        39,
        "resources=VCPU:1&root_required=in:T",
        "only supported since microversion 1.39. Got: in:T",
    ),
    (
        35,
        "resources_1=VCPU:1&same_subtree=_1",
        "'same_subtree' does not match any of the regexes",
    ),
    (
        36,
        "resources1=VCPU:1&required2=T&group_policy=none",
        "Resourceless suffixed group request should be specified in `same_subtree` query param: "
        "bad group(s) - ['2'].",
        BAD_VALUE,
    ),
    (36, f"resources1=VCPU:1&member_of2={A}&group_policy=none", "bad group(s) - ['2'].", BAD_VALUE),
    (
        36,
        f"member_of1={A}&group_policy=none",
        "There must be at least one resources or resources[$S] parameter.",
        MISSING_VALUE,
    ),
    (
        36,
        "resources_C=VCPU:1&resources_A=FPGA:1&same_subtree=C,_A&group_policy=none",
        "Real suffixes should be specified in `same_subtree`: ['C'] not found in ['_A', '_C'].",
        BAD_VALUE,
    ),
    (
        36,
        "resources_C=VCPU:1&resources_A=FPGA:1&same_subtree=_C,,_A&group_policy=none",
        "Empty string (unsuffixed group) can not be specified in `same_subtree`",
        BAD_VALUE,
    ),
]


@pytest.mark.parametrize("case", WRONG_CANDIDATES, ids=lambda case: f"1.{case[0]} {case[1][:60]}")
def test_the_error_of_a_candidates_query_says_what_is_wrong(
    case: tuple[int, str, str, *tuple[str, ...]],
) -> None:
    minor, query, text, *code = case
    with pytest.raises(InvalidRequest) as error:
        candidates(minor, query)
    assert text in error.value.detail
    assert error.value.code == (code[0] if code else UNDEFINED)


@pytest.mark.parametrize(
    ("minor", "url", "text"),
    [
        (0, "/resource_providers?spam=eggs", "Additional properties are not allowed ('spam' was unexpected)"),
        (0, "/resource_providers?uuid=spameggs", "'spameggs' is not a 'uuid'"),
        (2, f"/resource_providers?member_of=in:{A}", "('member_of' was unexpected)"),
        (3, "/resource_providers?resources=VCPU:1", "('resources' was unexpected)"),
        (13, f"/resource_providers?in_tree={A}", "('in_tree' was unexpected)"),
        (17, "/resource_providers?required=T", "('required' was unexpected)"),
        (3, "/resource_providers?member_of=not+a+uuid", "contain valid UUID(s). Got: not a uuid"),
        (23, f"/resource_providers?member_of={A}&member_of={B}", "Multiple member_of parameters are not"),
        (31, f"/resource_providers?member_of=!{A}", "Forbidden member_of parameters are not supported"),
        (14, "/resource_providers?in_tree=x", "'x' is not a 'uuid'"),
        (4, "/resource_providers?resources=", "Got: empty string."),
        (18, "/resource_providers?required=!T", "Got: !T"),
        (22, "/resource_providers?required=T,,U", "Got an empty trait in: T,,U"),
        (38, "/resource_providers?required=in:T,U", "only supported since microversion 1.39"),
        (9, "/usages", "'project_id' is a required property"),
        (9, "/usages?project_id=", "Failed validating 'minLength'"),
        (9, "/usages?project_id=p&user_id=", "Failed validating 'minLength'"),
        (9, f"/usages?project_id={'p' * 256}", "Failed validating 'maxLength'"),
        (9, "/usages?project_id=p&dummy=1", "Additional properties are not allowed"),
        (37, "/usages?project_id=p&consumer_type=X", "('consumer_type' was unexpected)"),
        (38, "/usages?project_id=p&consumer_type=x", "'x' does not match"),
        (6, "/traits?invalid=abc", PREFIX + "Additional properties are not allowed"),
        (
            6,
            "/traits?name=in_abc",
            "Badly formatted name parameter. Expected name query string parameter in form: "
            '?name=[in|startswith]:[name1,name2|prefix]. Got: "in_abc"',
        ),
        (6, "/traits?name=like:abc", "Badly formatted name parameter."),
        (6, "/traits?associated=xyz", 'The query parameter "associated" only accepts "true" or "false"'),
    ],
)
def test_the_error_of_another_query_says_what_is_wrong(minor: int, url: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(minor, url)
    assert text in error.value.detail


class TestCandidates:
    def test_plain_request(self) -> None:
        assert candidates(10, "resources=VCPU:2,MEMORY_MB:1024") == CandidatesRequest(
            (RequestGroup("", {"VCPU": 2, "MEMORY_MB": 1024}),), nested=False
        )

    def test_full_request(self) -> None:
        query = (
            f"resources=VCPU:2&required=T,!U&required=in:V,W&member_of={A}&member_of=!in:{A},{B}&in_tree={B}"
            "&resources_X=DISK_GB:1&required_Y=T&group_policy=isolate&root_required=R,!S"
            "&same_subtree=_X,_Y&same_subtree=_X&limit=3"
        )
        assert candidates(39, query) == CandidatesRequest(
            groups=(
                RequestGroup(
                    "",
                    {"VCPU": 2},
                    required=(frozenset({"T"}), frozenset({"V", "W"})),
                    forbidden=frozenset({"U"}),
                    member_of=(frozenset({A}),),
                    forbidden_aggregates=frozenset({A, B}),
                    in_tree=B,
                ),
                RequestGroup("_X", {"DISK_GB": 1}),
                RequestGroup("_Y", required=(frozenset({"T"}),)),
            ),
            group_policy="isolate",
            root_required=frozenset({"R"}),
            root_forbidden=frozenset({"S"}),
            same_subtrees=(frozenset({"_X", "_Y"}), frozenset({"_X"})),
            limit=3,
            nested=True,
        )

    def test_trees_are_combined_from_1_29(self) -> None:
        assert not candidates(28, "resources=VCPU:1").nested
        assert candidates(29, "resources=VCPU:1").nested

    def test_first_limit_and_group_policy_count(self) -> None:
        request = candidates(25, "resources=VCPU:1&limit=10&limit=1&group_policy=isolate&group_policy=none")
        assert (request.limit, request.group_policy) == (10, "isolate")

    def test_last_resources_trait_list_and_tree_count(self) -> None:
        query = f"resources=VCPU:1&resources=VCPU:2&required=T&required=U&in_tree={A}&in_tree={B}"
        assert group(38, query) == RequestGroup("", {"VCPU": 2}, (frozenset({"U"}),), in_tree=B)

    def test_all_trait_lists_count_from_1_39(self) -> None:
        assert group(39, "resources=VCPU:1&required=T&required=U").required == (
            frozenset({"T"}),
            frozenset({"U"}),
        )

    def test_last_amount_of_a_class_counts(self) -> None:
        assert group(10, "resources=VCPU:1,VCPU:3").resources == {"VCPU": 3}

    def test_a_huge_limit_is_no_limit(self) -> None:
        assert candidates(16, f"resources=VCPU:1&limit={'9' * 5000}").limit is None

    def test_amount_beyond_32_bits_is_a_number(self) -> None:
        assert group(10, "resources=VCPU:99999999999").resources == {"VCPU": 99999999999}

    def test_uuids_are_read_without_dashes(self) -> None:
        assert group(31, f"resources=VCPU:1&in_tree={A.replace('-', '')}").in_tree == A

    def test_conflict_needs_every_trait_of_a_set_forbidden(self) -> None:
        assert group(39, "resources=VCPU:1&required=in:T,U&required=!T").forbidden == {"T"}

    def test_group_policy_is_not_needed_for_one_suffixed_group(self) -> None:
        assert candidates(25, "resources=VCPU:1&resources1=VCPU:1").group_policy is None

    def test_suffix_of_64_characters(self) -> None:
        assert group(33, f"resources{'x' * 64}=VCPU:1").suffix == "x" * 64


def test_provider_filter() -> None:
    query = (
        f"/resource_providers?name=n&uuid={A}&member_of=in:{A},{B}&member_of=!{B}&resources=VCPU:1&in_tree={B}"
        "&required=T,!U"
    )
    assert parse(39, query) == ProviderFilter(
        name="n",
        uuid=A,
        member_of=(frozenset({A, B}),),
        forbidden_aggregates=frozenset({B}),
        resources={"VCPU": 1},
        in_tree=B,
        required=(frozenset({"T"}),),
        forbidden=frozenset({"U"}),
    )
    assert parse(0, "/resource_providers") == ProviderFilter()


def test_provider_filter_lets_conflicting_traits_pass() -> None:
    assert parse(22, "/resource_providers?required=T,!T") == ProviderFilter(
        required=(frozenset({"T"}),), forbidden=frozenset({"T"})
    )


def test_usages() -> None:
    assert parse(9, "/usages?project_id=p") == UsagesFilter("p")
    assert parse(38, "/usages?project_id=p&user_id=u&consumer_type=all") == UsagesFilter("p", "u", "all")


def test_traits() -> None:
    assert parse(6, "/traits") == TraitsFilter()
    assert parse(6, "/traits?name=in:A,B") == TraitsFilter(names=frozenset({"A", "B"}))
    assert parse(6, "/traits?name=startswith:CUSTOM_") == TraitsFilter(prefix="CUSTOM_")
    assert parse(6, "/traits?associated=True") == TraitsFilter(associated=True)
    assert parse(6, "/traits?associated=false") == TraitsFilter(associated=False)


class TestNames:
    def test_known_names_pass(self) -> None:
        request = candidates(39, "resources=VCPU:1&required=in:T,U&required=!V&root_required=W,!X")
        check_names(request, {"VCPU"}, {"T", "U", "V", "W", "X"})
        check_names(ProviderFilter(resources={"VCPU": 1}), {"VCPU"}, set())

    def test_unknown_class_is_named(self) -> None:
        request = candidates(25, "resources=VCPU:1&resources1=MCPU:99")
        text = "^Invalid resource class in resources parameter: No such resource class MCPU.$"
        with pytest.raises(InvalidRequest, match=text):
            check_names(request, {"VCPU"}, set())

    def test_unknown_traits_are_all_named(self) -> None:
        request = candidates(
            39, "resources=VCPU:1&required=T,B&required=in:C,T&required=!A&root_required=E,!D"
        )
        with pytest.raises(InvalidRequest, match=r"^No such trait\(s\): A, B, C, D, E\.$"):
            check_names(request, {"VCPU"}, {"T"})

    def test_unknown_traits_of_a_provider_filter(self) -> None:
        wanted = ProviderFilter(required=(frozenset({"T"}), frozenset({"BOGUS_TRAIT"})))
        text = r'^Invalid trait\(s\) in "required" parameter: No such trait\(s\): BOGUS_TRAIT\.$'
        with pytest.raises(InvalidRequest, match=text):
            check_names(wanted, set(), {"T"})
