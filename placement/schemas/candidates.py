"""Requests for candidates: the query string of ``GET /allocation_candidates``, and the parts of bodies.

A body, such as that of a claim or of ``POST /ext/v1/explanations``, has a query string or a registered form
(:func:`parse_body`).

From microversion 1.25 on, the parameters of a request group can have a suffix (``resources1``,
``required_NET``). So patterns describe the names of these parameters.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from oslo_config import cfg

from placement import extensions, microversion
from placement.exceptions import BAD_VALUE, DUPLICATE_KEY, MISSING_VALUE, InvalidRequest
from placement.kept_results import KeptResults
from placement.microversion import Microversion
from placement.schemas import terms
from placement.schemas.base import (
    MAX_INT,
    BooleanField,
    ObjectField,
    StrictSchema,
    StringField,
    unknown_names,
)
from placement.schemas.request_form import AskedCandidates, RequestForms
from placement.schemas.terms import PREFIX, Params, all_values, load_query, schema_at, since_version
from placement.search.claims.split_choices import is_splittable
from placement.search.claims.topology import SPLIT, TopologyPolicy
from placement.search.request import CandidatesRequest, RequestGroup

_LIMIT: Final = StringField(pattern="^[1-9][0-9]*$", metadata=since_version(microversion.CANDIDATES_LIMIT))


class UnsuffixedQuery(StrictSchema):
    """The query parameters before microversion 1.25."""

    resources = StringField(required=True, metadata=since_version(microversion.CANDIDATES))
    limit = _LIMIT
    required = StringField(metadata=since_version(microversion.CANDIDATES_TRAITS))
    member_of = StringField(metadata=since_version(microversion.CANDIDATES_MEMBER_OF))


class GranularQuery(StrictSchema):
    """The query parameters without a suffix, from microversion 1.25 on."""

    limit = _LIMIT
    group_policy = StringField(
        choices=("none", "isolate"), metadata=since_version(microversion.GRANULAR_GROUPS)
    )
    root_required = StringField(metadata=since_version(microversion.ROOT_REQUIRED))
    same_subtree = StringField(metadata=since_version(microversion.SAME_SUBTREE))


def parse_candidates(params: Params, version: Microversion) -> CandidatesRequest:
    """Parse the query string of ``GET /allocation_candidates`` at a microversion.

    If ``limit`` or ``group_policy`` occurs several times, its first value counts. A cache gives equal queries
    the same object for some time, so that a search recognises repeated queries.

    :raises InvalidRequest: the query string is invalid; the message has the reason.
    """
    pairs = tuple(params)
    return _PARSED.get((pairs, version), lambda: _parse(pairs, version))


_PARSED: Final = KeptResults[CandidatesRequest](32 << 20)
"""A cache of recently parsed queries, of at most 32 MiB."""


def _parse(params: Params, version: Microversion) -> CandidatesRequest:
    grouped, others = _split_params(params, version)
    load_query(GranularQuery if version >= microversion.GRANULAR_GROUPS else UnsuffixedQuery, others, version)
    # before 1.36, _check_orphans() reports groups without resources
    if version >= microversion.SAME_SUBTREE and not any(kind == "resources" for kind, _ in grouped):
        raise InvalidRequest(
            "There must be at least one resources or resources[$S] parameter.", MISSING_VALUE
        )
    root_required, root_forbidden = _root_required(others, version)
    same_subtrees = tuple(_same_subtree(text) for text in all_values(others, "same_subtree"))
    groups = _request_groups(grouped, version)
    if version >= microversion.SAME_SUBTREE:
        _check_subtrees(groups, same_subtrees)
    else:
        _check_orphans(grouped)
    if not groups:
        raise InvalidRequest("At least one request group (`resources` or `resources{$S}`) is required.")
    _check_conflicts(groups)
    # the first value counts, although load_query() has checked all values
    group_policy = next(iter(all_values(others, "group_policy")), None)
    if group_policy is None and sum(group.suffix != "" for group in groups) > 1:
        raise InvalidRequest(
            'The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.'
        )
    limit = next(iter(all_values(others, "limit")), None)
    return CandidatesRequest(
        groups=groups,
        group_policy=group_policy,
        root_required=root_required,
        root_forbidden=root_forbidden,
        same_subtrees=same_subtrees,
        limit=_limit(limit),
        nested=version >= microversion.NESTED_CANDIDATES,
    )


Grouped = Mapping[tuple[str, str], list[str]]


def _split_params(params: Params, version: Microversion) -> tuple[Grouped, Params]:
    """Split parameters into the parameters of groups, by kind and suffix, and the other parameters."""
    grouped: dict[tuple[str, str], list[str]] = {}
    others: list[tuple[str, str]] = []
    unknown: set[str] = set()
    patterns = _group_patterns(version)
    for name, value in params:
        match = next(filter(None, (pattern.fullmatch(name) for pattern in patterns)), None)
        if match is not None:
            grouped.setdefault((match[1], match[2] or ""), []).append(value)
        # before microversion 1.25, one schema has all parameters, also those of the group
        if match is None or version < microversion.GRANULAR_GROUPS:
            others.append((name, value))
            if version >= microversion.GRANULAR_GROUPS and not _is_known(name, version):
                unknown.add(name)
    if unknown:
        verb = "does" if len(unknown) == 1 else "do"
        regexes = ", ".join(repr(_as_documented(pattern)) for pattern in patterns)
        raise InvalidRequest(
            f"{PREFIX}{', '.join(map(repr, sorted(unknown)))} {verb} not match any of the regexes: {regexes} "
            "Failed validating 'additionalProperties' in schema",
            plain_detail=PREFIX + unknown_names(sorted(unknown), _known_names(version)),
        )
    return grouped, others


@lru_cache(maxsize=64)
def _group_patterns(version: Microversion) -> tuple[re.Pattern[str], ...]:
    """Return patterns for the names of group parameters; each pattern captures the kind and the suffix."""
    suffix = (
        "()"
        if version < microversion.GRANULAR_GROUPS
        else "([1-9][0-9]*)?"
        if version < microversion.NAMED_GROUPS
        else "([a-zA-Z0-9_-]{1,64})?"
    )
    return tuple(re.compile(f"^({kind}){suffix}$") for kind in _group_kinds(version))


def _as_documented(pattern: re.Pattern[str]) -> str:
    """Return the text of a pattern for error messages, without the parentheses around the kind."""
    return re.sub(r"^\^\((\w+)\)", r"^\1", pattern.pattern)


def _is_known(name: str, version: Microversion) -> bool:
    return name in schema_at(GranularQuery, version).fields


def _known_names(version: Microversion) -> list[str]:
    """Return the names of all parameters, those of groups without a suffix."""
    return [*_group_kinds(version), *schema_at(GranularQuery, version).fields]


def _group_kinds(version: Microversion) -> list[str]:
    kinds = ["member_of", "required", "resources"]
    return ["in_tree", *kinds] if version >= microversion.CANDIDATES_IN_TREE else kinds


def _limit(text: str | None) -> int | None:
    """Return the limit in a query as a number; None if the limit is so large that it has no effect."""
    # a number with more digits can exceed 64 bits
    if text is None or len(text) > 18:
        return None
    return int(text)


def _root_required(others: Params, version: Microversion) -> tuple[frozenset[str], frozenset[str]]:
    values = all_values(others, "root_required")
    if not values:
        return frozenset(), frozenset()
    if len(values) > 1:
        raise InvalidRequest("Query parameter 'root_required' may be specified only once.", DUPLICATE_KEY)
    each, forbidden = terms.parse_required(values, version, any_of=False)
    required = frozenset[str]().union(*each)
    if not required.isdisjoint(forbidden):
        raise InvalidRequest(
            "Conflicting required and forbidden traits found in root_required: "
            + ", ".join(sorted(required & forbidden)),
            BAD_VALUE,
        )
    return required, forbidden


def _same_subtree(text: str) -> frozenset[str]:
    suffixes = frozenset(suffix.strip() for suffix in text.split(","))
    if "" in suffixes:
        raise InvalidRequest(
            "Empty string (unsuffixed group) can not be specified in `same_subtree`", BAD_VALUE
        )
    return suffixes


def _request_groups(grouped: Grouped, version: Microversion) -> tuple[RequestGroup, ...]:
    """Return the groups in the order of the query; before 1.36, groups without resources are left out."""
    suffixes = dict.fromkeys(suffix for kind, suffix in grouped if kind == "resources")
    resources = {suffix: terms.parse_resources(grouped["resources", suffix][-1]) for suffix in suffixes}
    # from 1.36 on, a group without resources is allowed
    if version >= microversion.SAME_SUBTREE:
        suffixes = dict.fromkeys(suffix for _, suffix in grouped)
    required = {
        suffix: terms.parse_required(values, version)
        for (kind, suffix), values in grouped.items()
        if kind == "required"
    }
    member_of = {
        suffix: terms.parse_member_of(values, version)
        for (kind, suffix), values in grouped.items()
        if kind == "member_of"
    }
    in_tree = {
        suffix: terms.parse_in_tree(values[-1])
        for (kind, suffix), values in grouped.items()
        if kind == "in_tree"
    }
    nothing: tuple[tuple[frozenset[str], ...], frozenset[str]] = ((), frozenset())
    return tuple(
        RequestGroup(
            suffix=suffix,
            resources=resources.get(suffix, {}),
            required=required.get(suffix, nothing)[0],
            forbidden=required.get(suffix, nothing)[1],
            member_of=member_of.get(suffix, nothing)[0],
            forbidden_aggregates=member_of.get(suffix, nothing)[1],
            in_tree=in_tree.get(suffix),
        )
        for suffix in suffixes
    )


def _check_orphans(grouped: Grouped) -> None:
    """Check that each suffix with traits, aggregates or a tree also has resources, as before 1.36."""

    def find_orphans(kind: str) -> list[str]:
        return [
            each + suffix for each, suffix in grouped if each == kind and ("resources", suffix) not in grouped
        ]

    if traits := find_orphans("required"):
        raise InvalidRequest(
            "All traits parameters must be associated with resources.  "
            f"Found the following orphaned traits keys: {', '.join(traits)}"
        )
    if aggregates := find_orphans("member_of"):
        raise InvalidRequest(
            "All member_of parameters must be associated with resources. "
            f"Found the following orphaned member_of keys: {', '.join(aggregates)}"
        )
    if find_orphans("in_tree"):
        raise InvalidRequest("All request groups must specify resources.")


def _check_subtrees(groups: Iterable[RequestGroup], same_subtrees: Iterable[frozenset[str]]) -> None:
    """Check that ``same_subtree`` has only suffixes of groups, and those of all groups without resources."""
    suffixes = {group.suffix for group in groups if group.suffix}
    named = frozenset[str]().union(*same_subtrees)
    if not named <= suffixes:
        raise InvalidRequest(
            f"Real suffixes should be specified in `same_subtree`: {sorted(named - suffixes)} "
            f"not found in {sorted(suffixes)}.",
            BAD_VALUE,
        )
    bare = {group.suffix for group in groups if not group.resources}
    if not bare <= named:
        # short suffixes come first, so that the suffix 10 comes after the suffix 9
        bad = sorted(bare - named, key=lambda suffix: (len(suffix), suffix))
        raise InvalidRequest(
            "Resourceless suffixed group request should be specified in `same_subtree` query param: "
            f"bad group(s) - {bad}.",
            BAD_VALUE,
        )


def _check_conflicts(groups: Iterable[RequestGroup]) -> None:
    conflicts = [
        f"required{group.suffix}: ({', '.join(sorted(traits))})"
        for group in groups
        for traits in group.required
        # this is a conflict only if all alternatives are forbidden, because one alternative is enough
        if traits <= group.forbidden
    ]
    if conflicts:
        raise InvalidRequest(
            "Conflicting required and forbidden traits found in the following traits keys: "
            + ", ".join(conflicts)
        )


# the limit is about the maximum length of the request line of a GET
MAX_QUERY: Final = 8192
"""The maximum number of characters in a query."""
_MAX_PARAMETERS: Final = 1024
"""The maximum number of parameters in a query."""


class VersionedSchema(StrictSchema):
    """The base class of bodies with a flavor, or with a query in the grammar of a microversion.

    If the field ``strict`` is true, parts of the flavor that the service would otherwise ignore are errors.
    """

    microversion = StringField(
        pattern=microversion.OF_CANDIDATES,
        meaning=f"a microversion from 1.10 to {microversion.text(microversion.MAX)}",
        load_default=microversion.text(microversion.MAX),
    )
    strict = BooleanField(load_default=False)


# The class is made at import, because it has a field for each registered form, and the forms are known only
# at import.
_Forms: Any = StrictSchema.from_dict(
    {
        name: ObjectField(form.schema, load_default=None)
        for name, form in extensions.registered_objects("request_forms").items()
    }
)


class AskingSchema(_Forms):  # type: ignore[misc]  # its base is made, as above
    """The base class of bodies with a request for candidates: a query string or a registered form."""

    query = StringField(min_length=1, max_length=MAX_QUERY, load_default=None)


class TopologySchema(StrictSchema):
    """A topology policy, which splits requested dedicated CPUs and memory over NUMA nodes."""

    topology = StringField(choices=[each.value for each in TopologyPolicy], load_default=None)


class ExplanationBody(VersionedSchema, AskingSchema, TopologySchema):
    """The body: the request to explain, and its microversion."""


def parse_body(body: dict[str, Any], forms: RequestForms) -> AskedCandidates:
    """Convert a body to its request for candidates.

    :param forms: the registered forms of requests, such as flavors.
    :raises InvalidRequest: the query or the form is wrong; the message has the reason.
    """
    asked = _asked_candidates(body, forms)
    _check_amounts(asked.request)
    return asked


def parse_topology(given: str | None, request: CandidatesRequest) -> TopologyPolicy | None:
    """Return the topology policy of a body; None if the body has no topology policy.

    :raises InvalidRequest: the request has no resource class that the policy can split, or has a microversion
        before 1.29.
    """
    if given is None:
        return None
    if not request.nested:
        raise InvalidRequest("topology needs a query in the grammar of microversion 1.29 or later.")
    if not is_splittable(request):
        raise InvalidRequest(
            f"topology splits {' and '.join(SPLIT)} of the group without a suffix, but this group "
            f"requests neither."
        )
    return TopologyPolicy(given)


def request_forms(conf: cfg.ConfigOpts) -> RequestForms:
    """Make all registered forms of requests with this configuration."""
    return {name: form(conf) for name, form in extensions.registered_objects("request_forms").items()}


def _asked_candidates(body: dict[str, Any], forms: RequestForms) -> AskedCandidates:
    names = ("query", *forms)
    given = [name for name in names if body.get(name) is not None]
    if len(given) != 1:
        what = " or ".join(f"a '{name}'" for name in names)
        raise InvalidRequest(
            f"Either {what} is needed, and not both." if forms else f"{what.capitalize()} is needed."
        )
    if given[0] in forms:
        return forms[given[0]].translate(body[given[0]], strict=body["strict"])
    version = version_of(body)
    try:
        # the encoding is checked here, because parse_qsl() would silently replace bytes that are not UTF-8
        unquote_to_bytes(body["query"]).decode()
        pairs = parse_qsl(body["query"], keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError as error:
        raise InvalidRequest(f"Invalid query string parameters: {error}") from None
    return AskedCandidates(parse_candidates(pairs, version), version)


def _check_amounts(request: CandidatesRequest) -> None:
    """Refuse amounts that do not fit into the database column for allocations, which has 32 bits."""
    for group in request.groups:
        for name, amount in group.resources.items():
            if amount > MAX_INT:
                raise InvalidRequest(
                    f"Requested resource {name} requires amount <= {MAX_INT}. Got: {amount}."
                )


def version_of(body: dict[str, Any]) -> Microversion:
    """Return the microversion that determines the grammar of the query in a body."""
    major, minor = body["microversion"].split(".")
    return int(major), int(minor)
