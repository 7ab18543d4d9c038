"""An explanation as a JSON document."""

from typing import Any

from placement.explanations.clauses import RequestClause
from placement.explanations.explain import FunnelStep, NearestMiss, RequestExplanation
from placement.explanations.words import sentence_of_both


def document(explanation: RequestExplanation, fallback: RequestExplanation | None = None) -> dict[str, Any]:
    """The body of an answer; the API reference describes it.

    :param fallback: of what a flavor falls back to.
    """
    return {
        "sentence": sentence_of_both(explanation, fallback),
        "hosts": explanation.hosts,
        "fitting_hosts": explanation.fitting,
        "groups": [
            {
                "group": group.suffix,
                "resources": dict(group.resources),
                "conditions": [_step(step) for step in group.steps],
            }
            for group in explanation.groups
        ],
        "request": [_step(step) for step in explanation.steps],
        "reasons": [
            {
                **_clause(reason.clause),
                "hosts": reason.hosts,
                "examples": [_example(example) for example in reason.examples],
            }
            for reason in explanation.reasons
        ],
        "relaxations": [
            {
                "changes": [_clause(clause) for clause in (*each.amounts, *each.left_out)],
                "hosts": each.hosts,
            }
            for each in explanation.relaxations
        ],
        "largest": [
            {
                "group": each.clause.group,
                "resource_class": each.clause.names[0],
                "asked": each.clause.amount,
                "fits": each.fits,
            }
            for each in explanation.largest
        ],
        "incomplete": list(explanation.incomplete),
        "fallback": None if fallback is None else document(fallback),
    }


def _step(step: FunnelStep) -> dict[str, Any]:
    shown = {**_clause(step.clause), "hosts": step.hosts}
    if step.providers is not None:
        shown["providers"] = step.providers
    return shown


def _clause(clause: RequestClause) -> dict[str, Any]:
    return {
        "condition": clause.condition,
        "group": clause.group,
        "names": list(clause.names),
        "amount": clause.amount,
    }


def _example(example: NearestMiss) -> dict[str, Any]:
    provider = example.provider or example.root
    return {
        "host": example.root.name,
        "host_uuid": example.root.uuid,
        "provider_uuid": provider.uuid,
        "found": example.found,
    }
