"""The page ``/console/candidates``: allocation candidates of a guest, or the reasons for an empty list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, render_template, request

from placement.exceptions import InvalidRequest
from placement.policies import ext, rest
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas import base, candidates
from placement.schemas.request_form import AskedCandidates
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import AllocationCandidate, candidates_of, topology_first
from placement.search.request import check_names
from placement_extras.console import questions
from placement_extras.console.fleet import natural_order
from placement_extras.console.host import class_order
from placement_extras.console.page_request import SEE_HOSTS, ApiRefusal, PageRequest, ask_api, console_page
from placement_extras.console.questions import GuestQuestion


@dataclass(frozen=True, slots=True)
class ProviderTaking:
    """The amount of a resource class that a candidate takes from a provider.

    ``capacity`` and ``used`` are amounts of the same class at the same provider.
    """

    resource_class: str
    amount: int
    capacity: int
    used: int


@dataclass(frozen=True, slots=True)
class OfferLine:
    """A provider and its depth in the tree.

    A provider without ``takings`` is shown only because it connects providers below it to the root.
    """

    depth: int
    provider: Provider
    takings: tuple[ProviderTaking, ...]
    groups: tuple[str, ...]


Way = tuple[OfferLine, ...]
"""One candidate as lines of a picture: the tree of its host, then the trees of sharing providers."""


@dataclass(frozen=True, slots=True)
class HostOffer:
    """A host with its candidates."""

    host: Provider
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class HostOffers:
    """The candidates that the page shows, by host.

    ``has_more`` tells whether the search found more candidates than the page shows. ``is_fallback`` tells
    whether the candidates are for the fallback of the flavor, instead of its first request.
    """

    shown: tuple[HostOffer, ...]
    has_more: bool
    is_fallback: bool


def offers_by_host(
    snapshot: ModelSnapshot, candidates: Sequence[AllocationCandidate], limit: int, *, is_fallback: bool
) -> HostOffers:
    """Return the first candidates, grouped by host."""
    by_host: dict[int, list[Way]] = {}
    for each in candidates[:limit]:
        root = each.provider_set.members[0].root_id
        by_host.setdefault(root, []).append(_candidate_lines(snapshot, each, root))
    offers = [HostOffer(snapshot.providers[root], tuple(ways)) for root, ways in by_host.items()]
    return HostOffers(tuple(offers), len(candidates) > limit, is_fallback)


def _candidate_lines(snapshot: ModelSnapshot, candidate: AllocationCandidate, root: int) -> Way:
    asked = candidate.resources
    groups: dict[int, list[str]] = {}
    for suffix, served in candidate.mappings.items():
        for provider_id in served:
            groups.setdefault(provider_id, []).append(suffix)
    shown = {
        above.id for each in {*asked, *groups} for above in snapshot.lineage_of(snapshot.providers[each])
    }
    if root not in asked:
        shown.discard(root)  # the heading already shows the name of the host
    lines = _offer_lines(snapshot, [snapshot.providers[each] for each in shown], asked, groups)
    # the tree of the host comes first, then the trees that share with the host
    return tuple(sorted(lines, key=lambda line: line.provider.root_id != root))


def _offer_lines(
    snapshot: ModelSnapshot,
    providers: Iterable[Provider],
    asked: Mapping[int, Mapping[str, int]],
    groups: Mapping[int, Sequence[str]],
) -> Iterable[OfferLine]:
    paths = {each.id: tuple(snapshot.lineage_of(each))[::-1] for each in providers}
    # lines are sorted by the path from the root, so that each provider follows its parent
    in_order = sorted(paths.values(), key=lambda path: [(natural_order(each.name), each.id) for each in path])
    for path in in_order:
        provider = path[-1]
        takings = [
            ProviderTaking(name, amount, provider.inventories[name].capacity, provider.used.get(name, 0))
            for name, amount in sorted(
                asked.get(provider.id, {}).items(), key=lambda item: class_order(item[0])
            )
        ]
        # the group without a suffix has no name to show
        named = tuple(each for each in groups.get(provider.id, ()) if each)
        yield OfferLine(len(path) - 1, provider, tuple(takings), named)


blueprint = Blueprint("candidates", __name__)

# a visitor would not compare a larger number of pictures
_MAX_SHOWN: Final = 24
"""Maximum number of candidates that a page shows."""
_MIB: Final = 1 << 20
_BODY: Final = candidates.ExplanationBody()


@console_page(blueprint, "/console/candidates", *SEE_HOSTS, rest.LIST_CANDIDATES)
def explore_candidates(visit: PageRequest) -> str | tuple[str, int]:
    """Show the form and, if the form has a request, its candidates."""
    question = GuestQuestion.from_form(request.args)
    found: HostOffers | None = None
    warnings: tuple[str, ...] = ()
    why: Mapping[str, Any] | None = None
    error = ""
    if question.is_asked:
        try:
            asked = candidates.parse_body(
                base.load(_BODY, question.request_body()), visit.service.request_forms
            )
            warnings = asked.warnings
            found = _find_offers(visit, asked)
            # without the right to explanations, a visitor only sees that no candidates exist, as over REST
            if not found.shown and visit.may_use(ext.EXPLAIN):
                why = ask_api("POST", "/ext/v1/explanations", body=question.request_body())
        except InvalidRequest as refusal:
            error = refusal.plain_detail
        except ApiRefusal as refusal:
            error = refusal.detail
        except BudgetExhausted:
            error = "The search took longer than [api] candidates_deadline: ask for fewer groups."
    shown = render_template(
        "candidates.html",
        question=question,
        found=found,
        why=why,
        funnels=list(_explanation_funnels(why)),
        warnings=warnings,
        error=error,
        max_shown=_MAX_SHOWN,
    )
    return (shown, 400) if error else shown


def _find_offers(visit: PageRequest, asked: AskedCandidates) -> HostOffers:
    options = visit.service.conf
    with visit.service.model.fresh_view() as view:
        found = HostOffers((), False, False)
        for wanted in (asked.request, asked.fallback):
            # the fallback is used only if the request itself has no candidates
            if wanted is None or found.shown:
                continue
            check_names(wanted, view.names.classes, view.names.traits)
            budget = SearchBudget(
                options.api.candidates_deadline, options.api.candidates_size * _MIB, view.yield_lock
            )
            # the search is breadth first, because a few candidates of many hosts are more useful than many
            # candidates of one host. The search looks for one candidate more than the page shows. If the
            # search finds it, the page says that more candidates exist.
            patterns = find_candidates(
                view.snapshot, wanted, strategy="breadth-first", max_candidates=_MAX_SHOWN + 1, budget=budget
            )
            # the candidates are computed from the patterns while the view's snapshot is still available
            candidates = list(candidates_of(topology_first(patterns, budget)))
            found = offers_by_host(
                view.snapshot, candidates, _MAX_SHOWN, is_fallback=wanted is asked.fallback
            )
    return found


def _explanation_funnels(why: Mapping[str, Any] | None) -> Iterable[dict[str, Any]]:
    """Yield, for each group of the request, a title and the numbers of hosts left after each condition."""
    if why is None:
        return
    for group in why["groups"]:
        steps = questions.selective_steps(group["conditions"], why["hosts"])
        if steps:
            asked = ", ".join(f"{amount} {name}" for name, amount in group["resources"].items())
            of_group = f" of {group['group']}" if group["group"] else ""
            yield {"title": f"For {asked or 'no resources'}{of_group}", "steps": steps}
