"""``/console/candidates``: where a guest could go, drawn on the trees; and why it can go nowhere."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from flask import Blueprint, render_template, request

from placement.candidates.budget import BudgetExhausted, SearchBudget
from placement.candidates.order import topology_first
from placement.candidates.pattern import candidates_of
from placement.candidates.request import check_names
from placement.candidates.search import search
from placement.exceptions import InvalidRequest
from placement.policies import allocation_candidate, ext
from placement.schemas import base, explanation
from placement.schemas.request_form import AskedCandidates
from placement_extras.console import offers, questions
from placement_extras.console.asking import ApiRefusal, ask
from placement_extras.console.questions import GuestQuestion
from placement_extras.console.visit import SEE_HOSTS, PageRequest, page

blueprint = Blueprint("exploring", __name__)

_MAX_SHOWN: Final = 24
_MIB: Final = 1 << 20
_BODY: Final = explanation.ExplanationBody()


@page(blueprint, "/console/candidates", *SEE_HOSTS, allocation_candidate.LIST)
def explore(visit: PageRequest) -> str | tuple[str, int]:
    """The form, and what it asks for."""
    question = GuestQuestion.of(request.args)
    found: offers.HostOffers | None = None
    warnings: tuple[str, ...] = ()
    why: Mapping[str, Any] | None = None
    error = ""
    if question.is_asked:
        try:
            asked = explanation.parse(base.load(_BODY, question.body()), visit.service.request_forms)
            warnings = asked.warnings
            found = _candidates(visit, asked)
            if not found.shown and visit.may(ext.EXPLAIN):
                why = ask("POST", "/ext/v1/explanations", body=question.body())
        except (InvalidRequest, ApiRefusal) as refusal:
            error = refusal.detail
        except BudgetExhausted:
            error = "The search took longer than [api] candidates_deadline: ask for fewer groups."
    shown = render_template(
        "candidates.html",
        question=question,
        found=found,
        why=why,
        funnels=list(_funnels(why)),
        warnings=warnings,
        error=error,
        max_shown=_MAX_SHOWN,
    )
    return (shown, 400) if error else shown


def _candidates(visit: PageRequest, asked: AskedCandidates) -> offers.HostOffers:
    options = visit.service.conf
    with visit.service.model.fresh() as view:
        found = offers.HostOffers((), False, False)
        for wanted in (asked.request, asked.fallback):
            if wanted is None or found.shown:
                continue
            check_names(wanted, view.names.classes, view.names.traits)
            budget = SearchBudget(
                options.api.candidates_deadline, options.api.candidates_size * _MIB, view.give_way
            )
            # one of each host in turn: many hosts tell more than many places on one
            patterns = search(
                view.snapshot, wanted, strategy="breadth-first", max_candidates=_MAX_SHOWN + 1, budget=budget
            )
            candidates = list(candidates_of(topology_first(patterns, budget)))
            found = offers.draw(view.snapshot, candidates, _MAX_SHOWN, is_fallback=wanted is asked.fallback)
    return found


def _funnels(why: Mapping[str, Any] | None) -> Iterable[dict[str, Any]]:
    """How many hosts are left after each condition: of each group of an explanation, and of all together."""
    if why is None:
        return
    for group in why["groups"]:
        steps = questions.telling(group["conditions"], why["hosts"])
        if steps:
            asked = ", ".join(f"{amount} {name}" for name, amount in group["resources"].items())
            of_group = f" of {group['group']}" if group["group"] else ""
            yield {"title": f"For {asked or 'no resources'}{of_group}", "steps": steps}
