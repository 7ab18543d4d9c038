"""Expressions: metrics computed from other metrics, such as ``memory_pressure > 10 and swap_in > 50M``.

Nouns
    An *expression* consists of metrics, amounts, ``+ - * /``, comparisons, ``and``, ``or``, ``not`` and
    parentheses. Its value is a *condition*, which is 1 while it holds and 0 otherwise, or an amount in the
    unit of its metrics. Amounts are written as thresholds are: ``12G``, ``85%`` of the host's capacity.

    The first metric of an expression is its *subject*: guests are throttled and evicted as for this metric.

What always holds
    - An expression is parsed once, by this module, into functions over numbers; it never runs code.
    - Its length and its number of words are bounded.
    - Units agree, or the expression is refused.
    - Without the value of one of its metrics an expression has no value.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.throttling.watermarks.metrics import MetricUnit, MetricUsage, WatermarkMetric
from compute_agent.throttling.watermarks.thresholds import THRESHOLD, parse_threshold
from compute_agent.usage.rounds import MeasuringRound

MAX_LENGTH: Final = 500
MAX_WORDS: Final = 60
"""Nested parentheses cost stack: a word is a few calls deep."""

_WORD: Final = re.compile(rf"({THRESHOLD.pattern})(?![\w.])|[a-z][a-z0-9_]*|<=|>=|[-+*/<>()]", re.ASCII)
_JOINING: Final = ("and", "or", "not")

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SUMS: Final[Mapping[str, Callable[[float, float], float]]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "*": operator.mul,
    "/": operator.truediv,
}


class _DomainValues(NamedTuple):
    """Usage and capacity by metric, on one domain."""

    usage: Mapping[str, float]
    capacity: Mapping[str, float]


_Compute = Callable[[_DomainValues], float]
"""The value of a part. Raises LookupError where a metric has none, and ZeroDivisionError."""


@dataclass(frozen=True, slots=True)
class _ExpressionPart:
    """A part of an expression.

    ``unit`` None: an amount as written, which has the unit of the other side. ``metric`` is set for a metric
    alone.
    """

    text: str
    unit: MetricUnit | None
    compute: _Compute
    metric: str = ""


def is_expression(text: str) -> bool:
    """Whether the text of an option is an expression rather than the name of a metric."""
    return re.fullmatch(r"[A-Za-z0-9_]*", text.strip(), re.ASCII) is None


def normal_text(text: str) -> str:
    """An expression with single blanks: the name of its metric."""
    return " ".join(text.split())


def parse_expression(text: str, metrics: Mapping[str, WatermarkMetric]) -> WatermarkMetric:
    """The metric of an expression.

    :raises ValueError: the text is no expression, names an unknown metric, or mixes units.
    """
    parser = _ExpressionParser(text, metrics)
    part = parser.parse_whole()
    if not parser.inputs:
        raise ValueError(f"{normal_text(text)!r} names no metric")
    assert part.unit is not None, "only an amount alone has no unit"
    inputs = {name: metrics[name] for name in parser.inputs}
    subject = inputs[parser.inputs[0]]

    def measure_expression(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
        return _combine_usage(part.compute, {name: one.measure(now, before) for name, one in inputs.items()})

    return WatermarkMetric(
        normal_text(text),
        part.unit,
        subject.action_priority,
        measure_expression,
        subject.sorter,
        subject.lever,
        evictable=subject.evictable,
        inputs=tuple(inputs),
        external=any(one.external for one in inputs.values()),
    )


def _combine_usage(compute: _Compute, measured: Mapping[str, MetricUsage]) -> MetricUsage:
    """The values of an expression on the domains of its subject, which is the first of ``measured``."""
    found = {}
    for domain in next(iter(measured.values())).host:
        sources = {name: _matching_domain(one.host, domain) for name, one in measured.items()}
        values = _DomainValues(
            _values_at(sources, {name: one.host for name, one in measured.items()}),
            _values_at(sources, {name: one.capacity for name, one in measured.items()}),
        )
        try:
            found[domain] = compute(values)
        except (LookupError, ZeroDivisionError):
            continue
    return MetricUsage(found)


def _values_at(
    domains: Mapping[str, str | None], amounts: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    return {
        name: amounts[name][domain]
        for name, domain in domains.items()
        if domain is not None and domain in amounts[name]
    }


def _matching_domain(host: Mapping[str, float], domain: str) -> str | None:
    """The domain of a metric that goes with a domain of the subject."""
    if domain in host:
        return domain
    if "" in host or domain:
        return "" if "" in host else None
    # For the whole host the cache with the largest use counts.
    return max(host, key=lambda one: host[one], default=None)


class _ExpressionParser:
    """A parser by recursive descent, a method for each precedence."""

    def __init__(self, text: str, metrics: Mapping[str, WatermarkMetric]) -> None:
        self.inputs: list[str] = []
        self._metrics = metrics
        self._words = _split_words(text)
        self._next = 0

    def parse_whole(self) -> _ExpressionPart:
        """The whole text."""
        part = self._parse_alternatives()
        if self._present_word:
            raise ValueError(f"{self._present_word!r} is unexpected after {part.text!r}")
        return part

    @property
    def _present_word(self) -> str:
        return self._words[self._next] if self._next < len(self._words) else ""

    def _take_word(self, *words: str) -> str:
        """The next word if it is one of these, else an empty text."""
        found = self._present_word
        if found not in words:
            return ""
        self._next += 1
        return found

    def _parse_alternatives(self) -> _ExpressionPart:
        part = self._parse_conjunction()
        while self._take_word("or"):
            part = _join_parts(part, "or", self._parse_conjunction(), max)
        return part

    def _parse_conjunction(self) -> _ExpressionPart:
        part = self._parse_negation()
        while self._take_word("and"):
            part = _join_parts(part, "and", self._parse_negation(), min)
        return part

    def _parse_negation(self) -> _ExpressionPart:
        if not self._take_word("not"):
            return self._parse_comparison()
        part = self._parse_negation()
        compute = _condition_of(part)
        return _ExpressionPart(f"not {part.text}", MetricUnit.CONDITION, lambda values: 1 - compute(values))

    def _parse_comparison(self) -> _ExpressionPart:
        part = self._parse_sum()
        if sign := self._take_word(*_COMPARISONS):
            part = _compare_parts(part, sign, self._parse_sum())
        return part

    def _parse_sum(self) -> _ExpressionPart:
        part = self._parse_product()
        while sign := self._take_word(*_SUMS):
            part = _add_parts(part, sign, self._parse_product())
        return part

    def _parse_product(self) -> _ExpressionPart:
        part = self._parse_operand()
        while sign := self._take_word(*_PRODUCTS):
            part = _multiply_parts(part, sign, self._parse_operand())
        return part

    def _parse_operand(self) -> _ExpressionPart:
        if self._take_word("("):
            part = self._parse_alternatives()
            if not self._take_word(")"):
                raise ValueError(f"a parenthesis is missing after {part.text!r}")
            # An amount alone stays as it is written, to be read in the unit of the other side.
            return part if part.unit is None else replace(part, text=f"({part.text})")
        word = self._present_word
        self._next += 1
        if word[:1].isdigit():
            # A factor has no unit; _align_parts() reads the amount again in the unit of the other side.
            return _ExpressionPart(word, None, lambda values: float(word))
        if word in self._metrics:
            if word not in self.inputs:
                self.inputs.append(word)
            return _ExpressionPart(
                word, self._metrics[word].unit, lambda values: values.usage[word], metric=word
            )
        if not word.isidentifier() or word in _JOINING:
            raise ValueError(f"a metric or an amount is missing before {word or 'the end'!r}")
        raise ValueError(f"there is no metric {word!r}; choose one of {', '.join(sorted(self._metrics))}")


def _split_words(text: str) -> list[str]:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_LENGTH} characters")
    words, rest = [], text.strip()
    while rest:
        match = _WORD.match(rest)
        if match is None:
            raise ValueError(f"{rest[:20]!r} is no part of an expression")
        words.append("".join(match[0].split()))
        rest = rest[match.end() :].lstrip()
    if len(words) > MAX_WORDS:
        raise ValueError(f"the expression has more than {MAX_WORDS} words")
    return words


def _condition_of(part: _ExpressionPart) -> _Compute:
    if part.unit is not MetricUnit.CONDITION:
        raise ValueError(f"{part.text!r} is an amount, not a condition: compare it with another amount")
    return part.compute


def _join_parts(
    left: _ExpressionPart, word: str, right: _ExpressionPart, choose: Callable[[float, float], float]
) -> _ExpressionPart:
    first, second = _condition_of(left), _condition_of(right)
    return _ExpressionPart(
        f"{left.text} {word} {right.text}",
        MetricUnit.CONDITION,
        # Both, also if the first one decides: a missing metric must not depend on the order.
        lambda values: choose(first(values), second(values)),
    )


def _compare_parts(left: _ExpressionPart, sign: str, right: _ExpressionPart) -> _ExpressionPart:
    text = f"{left.text} {sign} {right.text}"
    _, first, second = _align_parts(left, right, text)
    compare = _COMPARISONS[sign]
    return _ExpressionPart(
        text, MetricUnit.CONDITION, lambda values: float(compare(first(values), second(values)))
    )


def _add_parts(left: _ExpressionPart, sign: str, right: _ExpressionPart) -> _ExpressionPart:
    text = f"{left.text} {sign} {right.text}"
    unit, first, second = _align_parts(left, right, text)
    add = _SUMS[sign]
    return _ExpressionPart(text, unit, lambda values: add(first(values), second(values)))


def _multiply_parts(left: _ExpressionPart, sign: str, right: _ExpressionPart) -> _ExpressionPart:
    text = f"{left.text} {sign} {right.text}"
    multiply, first, second = _PRODUCTS[sign], left.compute, right.compute
    if MetricUnit.CONDITION in (left.unit, right.unit):
        raise ValueError(f"{text!r} multiplies or divides a condition")
    for part in (left, right):
        if part.unit is None and not part.text.replace(".", "", 1).isdigit():
            raise ValueError(f"{text!r}: {part.text} has a unit; multiply and divide by plain numbers")
    if right.unit is None:
        unit = left.unit
    elif sign == "*" and left.unit is None:
        unit = right.unit
    elif sign == "/" and left.unit is right.unit:
        unit = MetricUnit.OTHER
    else:
        raise ValueError(f"{text!r} has no unit: multiply by a number, or divide amounts of one unit")
    return _ExpressionPart(text, unit, lambda values: multiply(first(values), second(values)))


def _align_parts(
    left: _ExpressionPart, right: _ExpressionPart, text: str
) -> tuple[MetricUnit, _Compute, _Compute]:
    """The common unit of two parts, and their values in it."""
    unit = right.unit if left.unit is None else left.unit
    if unit is None:
        raise ValueError(f"{text!r} has no metric")
    if MetricUnit.CONDITION in (left.unit, right.unit):
        raise ValueError(f"{text!r} takes a condition for an amount: combine conditions by and, or, not")
    if None not in (left.unit, right.unit) and left.unit is not right.unit:
        raise ValueError(
            f"{text!r}: {left.text} is in {left.unit or 'another unit'}, and {right.text} in"
            f" {right.unit or 'another unit'}"
        )
    return unit, _amount_of(left, unit, right.metric), _amount_of(right, unit, left.metric)


def _amount_of(part: _ExpressionPart, unit: MetricUnit, other: str) -> _Compute:
    """The value of a part beside another metric, which is empty beside anything else."""
    if part.unit is not None:
        return part.compute
    threshold = parse_threshold(part.text, unit)
    if not threshold.relative:
        return lambda values: threshold.value
    if not other:
        raise ValueError(f"{part.text} is a share of a metric's capacity: compare it with one metric alone")
    return lambda values: threshold.value / 100 * values.capacity[other]
