"""An explanation as one sentence, and as a JSON document."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from placement.search.diagnosis.clauses import RequestClause
from placement.search.diagnosis.explanation import (
    FunnelStep,
    NearestMiss,
    ProviderPlace,
    RequestExplanation,
    UnmetReason,
)
from placement.search.diagnosis.relaxations import RequestRelaxation

_MAX_REASONS: Final = 6
_MAX_NAME: Final = 60


def sentence(explanation: RequestExplanation) -> str:
    """What fits, what the others lack, and the change that would help most.

    For instance ``0 of 10,000 hosts: 8,218 have no NUMA node with 30 PCPU free (most: 28 on h17), 913 lack
    CUSTOM_A; asking for 28 PCPU would leave 41 hosts``. What users call their providers is shown as what
    can be printed.
    """
    if not explanation.hosts:
        return "there are no resource providers"
    fitting = "an unknown number" if explanation.fitting is None else _number(explanation.fitting)
    text = f"{fitting} of {plural(explanation.hosts, 'host')}"
    reasons = [_counted(each.hosts, _reason(each)) for each in explanation.reasons[:_MAX_REASONS]]
    if others := explanation.reasons[_MAX_REASONS:]:
        reasons.append(_counted(sum(each.hosts for each in others), "have other reasons"))
    if reasons:
        text += ": " + ", ".join(reasons)
    elif explanation.fitting == explanation.hosts:
        text += " fit"
    if explanation.relaxations:
        text += "; " + best(explanation.relaxations)
    if explanation.incomplete:
        text += " (not all was looked at: [api] explanations_deadline)"
    return text


def best(relaxations: Sequence[RequestRelaxation]) -> str:
    """Of the relaxations that change least the one that helps most."""
    fewest = min(map(_changes, relaxations))
    return _relaxation(
        max(
            (each for each in relaxations if _changes(each) == fewest),
            key=lambda each: (each.hosts, not any(map(_is_of_resources, each.left_out))),
        )
    )


def sentence_of_both(explanation: RequestExplanation, fallback: RequestExplanation | None) -> str:
    """The same of a request, and of what it falls back to, if it does."""
    return of_both(sentence(explanation), None if fallback is None else sentence(fallback))


def of_both(text: str, fallback: str | None = None) -> str:
    """What is said of a request, and of what it falls back to."""
    return text if fallback is None else f"{text}; with VCPU instead of PCPU, to fall back to: {fallback}"


_OF_ONE: Final = {"have": "has", "lack": "lacks", "are": "is", "give": "gives"}


def _counted(count: int, predicate: str) -> str:
    """The sentence that so many hosts are this."""
    verb, rest = predicate.split(" ", 1)
    return f"{_number(count)} {_OF_ONE.get(verb, verb) if count == 1 else verb} {rest}"


def _changes(relaxation: RequestRelaxation) -> int:
    return len(relaxation.left_out) + len(relaxation.amounts)


def _reason(reason: UnmetReason) -> str:
    clause, example = reason.clause, reason.examples[0]
    if clause.condition == "capacity":
        return f"have {_too_little(reason)}"
    if clause.condition == "step_size" and len(reason.steps) > 1:
        return f"give {clause.names[0]} in other steps{_of_group(clause)}"
    if example.found is not None:
        return f"{_PORTIONS[clause.condition](clause, example.found)}{_of_group(clause)}"
    nobody = f" ({_NOBODY[clause.condition]})" if reason.is_of_nobody else ""
    return f"{_LACKING[clause.condition](clause)}{_of_group(clause)}{nobody}"


def _too_little(reason: UnmetReason) -> str:
    """What is true of all hosts of a reason, and how much is free where it is most."""
    clause, example = reason.clause, reason.examples[0]
    amount = f"{clause.amount} {clause.names[0]} free{_of_group(clause)}"
    if reason.is_avoided:
        return f"no provider with {amount} that is not avoided"
    if reason.places == {ProviderPlace.ROOT}:
        has = f"less than {amount}"
    else:
        (place,) = reason.places if len(reason.places) == 1 else (ProviderPlace.ELSEWHERE,)
        has = f"no {place.value} with {amount}"
    provider = example.provider or example.root
    # what a pool has free is not on the host that it shares with
    on = provider if provider.root_id != example.root.id else example.root
    return f"{has} (most: {_number(example.found or 0)} on {printable(on.name)})"


_NOBODY: Final = {"in_tree": "there is no such provider", "member_of": "nobody is"}

_PORTIONS: Final[dict[str, Callable[[RequestClause, int], str]]] = {
    "min_unit": lambda clause, found: f"give no less than {found} {clause.names[0]} at once",
    "max_unit": lambda clause, found: f"give no more than {found} {clause.names[0]} at once",
    "step_size": lambda clause, found: f"give {clause.names[0]} in steps of {found}",
}


def _one_of(clause: RequestClause) -> str:
    return clause.names[0] if len(clause.names) == 1 else f"any of {', '.join(clause.names)}"


_LACKING: Final[dict[str, Callable[[RequestClause], str]]] = {
    "resource_class": lambda clause: f"have no {clause.names[0]}",
    "required": lambda clause: f"lack {_one_of(clause)}",
    "forbidden": lambda clause: f"have {clause.names[0]}, which is forbidden",
    "in_tree": lambda clause: f"are not the tree of {clause.names[0]}",
    "member_of": lambda clause: f"are not in {_aggregates(clause)}",
    "forbidden_aggregates": lambda clause: f"are in the forbidden {_aggregates(clause)}",
    "root_required": lambda clause: f"lack {clause.names[0]} at their root",
    "root_forbidden": lambda clause: f"have {clause.names[0]} at their root, which is forbidden",
    "together": lambda _: "can serve each part, but not all at once",
    "same_subtree": lambda clause: (
        f"cannot serve {' and '.join(clause.names)} from one provider and what is below it"
    ),
    "group_policy": lambda _: "have too few providers for isolated groups",
}


def _aggregates(clause: RequestClause) -> str:
    return "aggregate " + _one_of(clause).removeprefix("any of ").replace(", ", " or ")


def _of_group(clause: RequestClause) -> str:
    return f" for {clause.group}" if clause.group else ""


def _relaxation(relaxation: RequestRelaxation) -> str:
    parts = []
    if relaxation.amounts:
        amounts = [f"{each.amount} {each.names[0]}{_of_group(each)}" for each in relaxation.amounts]
        parts.append(f"asking for {' and '.join(amounts)}")
    left_out = [_left_out(each) for each in relaxation.left_out if each.condition != "group_policy"]
    if left_out:
        parts.append(f"leaving out {' and '.join(left_out)}")
    if len(left_out) < len(relaxation.left_out):
        parts.append("asking for group_policy=none")
    return f"{' and '.join(parts)} would leave {plural(relaxation.hosts, 'host')}"


def _is_of_resources(clause: RequestClause) -> bool:
    return clause.condition == "resources"


def _left_out(clause: RequestClause) -> str:
    if _is_of_resources(clause):
        return f"{clause.names[0]}{_of_group(clause)}"
    names = ",".join(clause.names)
    if clause.condition == "same_subtree":
        return f"same_subtree={names}"
    parameter, mark = _PARAMETERS[clause.condition]
    mark = "in:" if len(clause.names) > 1 else mark
    return f"{parameter}{clause.group}={mark}{names}"


_PARAMETERS: Final = {
    "required": ("required", ""),
    "forbidden": ("required", "!"),
    "in_tree": ("in_tree", ""),
    "member_of": ("member_of", ""),
    "forbidden_aggregates": ("member_of", "!"),
    "root_required": ("root_required", ""),
    "root_forbidden": ("root_required", "!"),
}


def printable(name: str) -> str:
    """A name that somebody chose, as it may stand in a line of a log."""
    shown = name if name.isprintable() else ascii(name)[1:-1]
    return shown if len(shown) <= _MAX_NAME else shown[: _MAX_NAME - 3] + "..."


def _number(count: int) -> str:
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    """So many of a thing."""
    return f"{_number(count)} {noun}{'' if count == 1 else 's'}"


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
                "examples": [_example_document(example) for example in reason.examples],
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


def _example_document(example: NearestMiss) -> dict[str, Any]:
    provider = example.provider or example.root
    return {
        "host": example.root.name,
        "host_uuid": example.root.uuid,
        "provider_uuid": provider.uuid,
        "found": example.found,
    }
