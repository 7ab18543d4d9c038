"""Results of a case from this service and from a reference (the judge), in a form in which they can be
compared.

A case is a flavor as bodies have it, and the rules by which it is translated.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from placement import microversion
from placement.exceptions import InvalidRequest
from placement.schemas.base import load
from placement.schemas.candidates import parse_candidates
from placement.schemas.request_form import AskedCandidates
from placement.search.request import CandidatesRequest
from placement_extras.flavors import form, groups
from placement_extras.flavors.flavor import TranslationRules
from placement_extras.flavors.translation import translate_flavor

Answer = tuple[dict[str, Any] | None, dict[str, Any] | None]
"""A request and the one to fall back to; None for none."""

REFUSED: Final[Answer] = (None, None)
_DEVICE: Final = re.compile("_PCI_[0-9]+|[0-9a-f-]{36}-[0-9]+")
"""The suffix of a PCI device in our requests and in Nova's."""
OF_UNIT_TESTS: Final = "of Nova's unit tests"
AT_RANDOM: Final = "at random"
RECORDED: Final = Path(__file__).with_name("recorded.jsonl")


def recorded() -> list[dict[str, Any]]:
    """Recorded cases with the requests that Nova made; ``python -m tests.nova.handpicked`` records them."""
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def translated(case: dict[str, Any]) -> AskedCandidates:
    """Return the request that this service makes of a flavor.

    :raises InvalidRequest: the flavor is refused.
    """
    asked = form.parse(load(form.FlavorAsked(), case["flavor"]))
    switches = {name: value for name, value in case["rules"].items() if name != "pci_alias"}
    aliases = groups.pci_aliases(case["rules"].get("pci_alias", ()))
    return translate_flavor(
        asked, TranslationRules(**switches, disable_fallback_pcpu_query=False, pci_aliases=aliases)
    )


def ours(case: dict[str, Any]) -> Answer:
    try:
        found = translated(case)
    except InvalidRequest:
        return REFUSED
    return _plain(found.request), found.fallback and _plain(found.fallback)


def judged(verdict: dict[str, Any]) -> Answer:
    """Return the request that the reference makes of a flavor. A query that Placement refuses counts as a
    refusal.
    """
    if "refused" in verdict:
        return REFUSED
    try:
        return _of_query(verdict["query"]), _of_query(verdict["fallback"])
    except InvalidRequest:
        return REFUSED


def _of_query(query: str | None) -> dict[str, Any] | None:
    if query is None:
        return None
    pairs = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "limit"]
    return _plain(parse_candidates(pairs, microversion.MAX))


def _plain(request: CandidatesRequest) -> dict[str, Any]:
    """Return the content of a request as a dict, with sets where the order does not matter."""
    return {
        "groups": {
            group.suffix: (dict(group.resources), frozenset(group.required), group.forbidden)
            for group in request.groups
            if not _DEVICE.fullmatch(group.suffix)
        },
        "devices": Counter(
            (tuple(group.resources.items()), frozenset(group.required), group.forbidden)
            for group in request.groups
            if _DEVICE.fullmatch(group.suffix)
        ),
        "policy": request.group_policy,
        "root": (request.root_required, request.root_forbidden),
        "others": (request.same_subtrees, request.limit, request.nested),
        "elsewhere": [
            each for each in request.groups if each.member_of or each.forbidden_aggregates or each.in_tree
        ],
    }
