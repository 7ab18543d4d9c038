"""Renders an explanation as a sentence and as a JSON document."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from placement.search.conditions import ConditionWords, condition_class
from placement.search.diagnosis.clauses import RequestClause
from placement.search.diagnosis.explanation import (
    FunnelStep,
    NearestMiss,
    ProviderPlace,
    RequestExplanation,
    TopologyFit,
    UnmetReason,
)
from placement.search.diagnosis.relaxations import RequestRelaxation

_MAX_REASONS: Final = 6
"""Maximum number of reasons that a sentence names."""
_MAX_NAME: Final = 60
"""Maximum number of characters of a provider's name in a sentence."""


def explanation_sentence(explanation: RequestExplanation) -> str:
    """Return a sentence with the number of fitting hosts, other hosts' reasons, and the best change.

    For instance ``0 of 10,000 hosts: 9,087 have no NUMA node with 30 PCPU free (most: 28 on h17), 913 lack
    CUSTOM_A; asking for 28 PCPU would leave 41 hosts``. Names of providers are shown in printable form.
    """
    # without providers, "0 of 0 hosts" would mislead
    if not explanation.hosts:
        return "there are no resource providers"
    if explanation.topology is not None:
        return _topology_sentence(explanation, explanation.topology)
    # The number is None if the budget was spent before the rules between groups were checked
    fitting = "an unknown number" if explanation.fitting is None else _format_number(explanation.fitting)
    text = f"{fitting} of {counted_noun(explanation.hosts, 'host')}"
    reasons = [
        _count_predicate(each.hosts, _reason_text(each)) for each in explanation.reasons[:_MAX_REASONS]
    ]
    # the sentence has only some reasons, because the sentence goes to a log; the JSON document has all of
    # them
    if others := explanation.reasons[_MAX_REASONS:]:
        reasons.append(_count_predicate(sum(each.hosts for each in others), "have other reasons"))
    if reasons:
        text += ": " + ", ".join(reasons)
    # without reasons, "fit" is only certain if all hosts fit
    elif explanation.fitting == explanation.hosts:
        text += " fit"
    if explanation.relaxations:
        text += "; " + best_relaxation(explanation.relaxations)
    # the text names the option, so that the operator knows which limit to raise
    if explanation.incomplete:
        text += " (incomplete: [api] explanations_deadline)"
    return text


def _topology_sentence(explanation: RequestExplanation, fit: TopologyFit) -> str:
    """Return the sentence that compares a request with and without its topology policy."""
    if fit.at_most:
        most = "" if fit.fitting == fit.at_most else f" to {_format_number(fit.at_most)}"
        hosts = f"{_format_number(fit.fitting)}{most} of {counted_noun(explanation.hosts, 'host')}"
        said = [f"topology {fit.policy} leaves {hosts}"]
    else:
        said = [f"topology {fit.policy} leaves no place"]
    said += [f"{fit.looser} would fit"] if fit.looser else []
    said += [best_relaxation(explanation.relaxations)] if explanation.relaxations else []
    said += ["further changes would take too long to find"] if "relaxations" in explanation.incomplete else []
    # these fields are about the topology, which the first half of the sentence covers
    others = tuple(each for each in explanation.incomplete if each not in ("topology", "relaxations"))
    # the relaxations are in the first half, too, because they were tried with the topology
    unsplit = replace(explanation, topology=None, relaxations=(), incomplete=others)
    return f"{', '.join(said)}; without a topology {explanation_sentence(unsplit)}"


def best_relaxation(relaxations: Sequence[RequestRelaxation]) -> str:
    """Return the text of the relaxation with the fewest changes.

    Of several relaxations with the fewest changes, the result is the relaxation that fits most hosts.
    """
    fewest = min(map(_count_changes, relaxations))
    return _relaxation_text(
        max(
            (each for each in relaxations if _count_changes(each) == fewest),
            # among equal relaxations, one that still asks for all resources comes first
            key=lambda each: (each.hosts, not any(map(_is_of_resources, each.left_out))),
        )
    )


def of_both(text: str, fallback: str | None = None) -> str:
    """Join two texts, about a request and about its fallback; without a fallback, return the first text."""
    return text if fallback is None else f"{text}; for the fallback of the flavor: {fallback}"


_OF_ONE: Final = {"have": "has", "lack": "lacks", "are": "is", "give": "gives"}


def _count_predicate(count: int, predicate: str) -> str:
    """Return a predicate with the number of its hosts as subject, such as "3 lack CUSTOM_A"."""
    # predicates are written in the plural, so the table has the singular of their verbs
    verb, rest = predicate.split(" ", 1)
    return f"{_format_number(count)} {_OF_ONE.get(verb, verb) if count == 1 else verb} {rest}"


def _count_changes(relaxation: RequestRelaxation) -> int:
    return len(relaxation.left_out) + len(relaxation.amounts)


def _reason_text(reason: UnmetReason) -> str:
    clause, example = reason.clause, reason.examples[0]
    if clause.condition == "capacity":
        return f"have {_too_little_free(reason)}"
    if clause.condition == "step_size" and len(reason.steps) > 1:
        # the text has no step size, because it would be right only for some of the hosts
        return f"give {clause.names[0]} in other steps{_of_group(clause)}"
    words = words_of(clause.condition)
    lacking = words.render(words.lacking, clause.names, clause.amount, example.found)
    unknown = f" ({words.unknown})" if reason.names_nothing_known else ""
    return f"{lacking}{_of_group(clause)}{unknown}"


def _too_little_free(reason: UnmetReason) -> str:
    """Return a predicate for all hosts that have too little free, with their largest free amount."""
    clause, example = reason.clause, reason.examples[0]
    amount = f"{clause.amount} {clause.names[0]} free{_of_group(clause)}"
    if reason.is_avoided:
        return f"no provider with {amount} that is not avoided"
    # the place is left out for hosts of a single provider, because "no root with" would sound odd
    if reason.places == {ProviderPlace.ROOT}:
        has = f"less than {amount}"
    else:
        # the text has no place, because hosts differ in the place
        (place,) = reason.places if len(reason.places) == 1 else (ProviderPlace.ELSEWHERE,)
        has = f"no {place.value} with {amount}"
    # the first example has the largest free amount, because it is the nearest miss
    provider = example.provider or example.root
    # a sharing provider is named instead of the host, because its free amount is not on the host
    on = provider if provider.root_id != example.root.id else example.root
    return f"{has} (most: {_format_number(example.found or 0)} on {printable_name(on.name)})"


_WORDS: Final[dict[str, ConditionWords]] = {
    "resource_class": ConditionWords("have {names}", "have no {names}"),
    "capacity": ConditionWords("have {amount} {names} free"),  # the text of a lack is in _too_little_free()
    "min_unit": ConditionWords(
        "give as little as {amount} {names}", "give no less than {found} {names} at once"
    ),
    "max_unit": ConditionWords(
        "give as much as {amount} {names} at once", "give no more than {found} {names} at once"
    ),
    "step_size": ConditionWords("give {amount} {names} in their steps", "give {names} in steps of {found}"),
    "resources": ConditionWords("have {amount} {names}"),
    "group": ConditionWords("can serve {names}"),
    "all_groups": ConditionWords("can serve all of it at once", "can serve each part, but not all at once"),
    "same_subtree": ConditionWords(
        "can serve {names} from one provider and what is below it",
        "cannot serve {all_of} from one provider and what is below it",
        "same_subtree",
    ),
    "group_policy": ConditionWords(
        "have a provider for each group", "have too few providers for isolated groups"
    ),
}
"""Words for clauses about amounts, and for clauses that relate several parts of a request."""
_OTHER_WORDS: Final = ConditionWords("{names}", "do not meet {names}")


def words_of(condition: str) -> ConditionWords:
    """Return the words for clauses of the condition with this name; an unknown name gets default words."""
    found = condition_class(condition)
    return _WORDS.get(condition, _OTHER_WORDS) if found is None else found.words


def _of_group(clause: RequestClause) -> str:
    return f" for {clause.group}" if clause.group else ""


def _relaxation_text(relaxation: RequestRelaxation) -> str:
    parts = []
    if relaxation.amounts:
        amounts = [f"{each.amount} {each.names[0]}{_of_group(each)}" for each in relaxation.amounts]
        parts.append(f"asking for {' and '.join(amounts)}")
    # the omission of a policy is written as group_policy=none, because a query with several groups needs a
    # policy
    left_out = [_left_out(each) for each in relaxation.left_out if each.condition != "group_policy"]
    if left_out:
        parts.append(f"leaving out {' and '.join(left_out)}")
    if len(left_out) < len(relaxation.left_out):
        parts.append("asking for group_policy=none")
    return f"{' and '.join(parts)} would leave {counted_noun(relaxation.hosts, 'host')}"


def _is_of_resources(clause: RequestClause) -> bool:
    return clause.condition == "resources"


def _left_out(clause: RequestClause) -> str:
    if _is_of_resources(clause):
        return f"{clause.names[0]}{_of_group(clause)}"
    names = ",".join(clause.names)
    if clause.condition == "same_subtree":
        return f"same_subtree={names}"
    words = words_of(clause.condition)
    if not words.parameter:
        return f"the place {clause.condition} {names}{_of_group(clause)}"
    # the names are spelled as in a query: required=in:A,B means A or B
    mark = "in:" if len(clause.names) > 1 else words.mark
    return f"{words.parameter}{clause.group}={mark}{names}"


def printable_name(name: str) -> str:
    """Return a name in a form that is safe in a line of a log: printable and short."""
    # line breaks are replaced, because clients choose names and could forge lines of the log
    shown = name if name.isprintable() else ascii(name)[1:-1]
    return shown if len(shown) <= _MAX_NAME else shown[: _MAX_NAME - 3] + "..."


def _format_number(count: int) -> str:
    return f"{count:,}"


def counted_noun(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{_format_number(count)} {noun}{'' if count == 1 else 's'}"


def explanation_document(
    explanation: RequestExplanation, fallback: RequestExplanation | None = None
) -> dict[str, Any]:
    """Return the body of an answer, as the API reference describes it.

    :param fallback: the explanation of a flavor's second request, which asks for VCPU in place of PCPU.
    """
    both = [explanation] if fallback is None else [explanation, fallback]
    return {
        "summary": of_both(*map(explanation_sentence, both)),
        "hosts": explanation.hosts,
        "candidate_hosts": explanation.fitting,
        "groups": [
            {
                "group": group.suffix,
                "resources": dict(group.resources),
                "conditions": [_step_document(step) for step in group.steps],
            }
            for group in explanation.groups
        ],
        "host_conditions": [_step_document(step) for step in explanation.steps],
        "reasons": [
            {
                **_clause_document(reason.clause),
                "hosts": reason.hosts,
                "examples": [_example_document(example) for example in reason.examples],
            }
            for reason in explanation.reasons
        ],
        "relaxations": [
            {
                "changes": [_clause_document(clause) for clause in (*each.amounts, *each.left_out)],
                "hosts": each.hosts,
            }
            for each in explanation.relaxations
        ],
        "max_amounts": [
            {
                "group": each.clause.group,
                "resource_class": each.clause.names[0],
                "requested_amount": each.clause.amount,
                "max_amount": each.fits,
            }
            for each in explanation.largest
        ],
        "topology": None if explanation.topology is None else _topology_document(explanation.topology),
        "incomplete": list(explanation.incomplete),
        "fallback": None if fallback is None else explanation_document(fallback),
    }


def _topology_document(fit: TopologyFit) -> dict[str, Any]:
    return {
        "policy": fit.policy,
        "lower_bound": fit.fitting,
        "upper_bound": fit.at_most,
        "fitting_policy": fit.looser,
    }


def _step_document(step: FunnelStep) -> dict[str, Any]:
    shown = {**_clause_document(step.clause), "hosts": step.hosts}
    if step.providers is not None:
        # only steps about single providers have this field, as the API reference says
        shown["providers"] = step.providers
    return shown


def _clause_document(clause: RequestClause) -> dict[str, Any]:
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
        "actual": example.found,
    }
