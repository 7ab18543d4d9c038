"""Expressions: metrics computed from other metrics, such as ``memory_pressure > 10 and swap_in > 50M``.

Nouns
    An *expression* consists of metrics, amounts, ``+ - * /``, comparisons, ``and``, ``or``, ``not`` and
    parentheses. Its value is either an amount, or true or false. An expression that is true or false is a
    *condition*. A condition has the value 1 while it holds, and 0 otherwise. An amount is in the unit of the
    expression's metrics. Amounts in an expression have the format of thresholds, such as ``12G``, or ``85%``
    of the host's capacity.

    The first metric of an expression is its *subject*. The lever, the order of guests, the function for
    evictions and the priority of an expression are those of its subject.

Invariants
    - An expression is parsed once, by this module, into functions over numbers. The module never runs code.
    - The length and the number of words of an expression are bounded.
    - An expression that adds or compares amounts with different units is refused.
    - If a metric of an expression has no value in a round, the expression has no value either.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.throttling.watermarks.metrics import (
    JOINING_WORDS,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
)
from compute_agent.throttling.watermarks.thresholds import THRESHOLD, parse_threshold
from compute_agent.usage.rounds import MeasuringRound

MAX_LENGTH: Final = 500
"""Maximum number of characters of an expression."""

MAX_WORDS: Final = 60
"""Maximum number of words of an expression. This number limits the recursion of the parser, which is several
calls deeper for each nested parenthesis."""

_WORD: Final = re.compile(rf"({THRESHOLD.pattern})(?![\w.])|[a-z][a-z0-9_]*|<=|>=|[-+*/<>()]", re.ASCII)

_COMPARISONS: Final = ("<", "<=", ">", ">=")
_SUMS: Final = ("+", "-")
_ALIGNED: Final[Mapping[str, Callable[[float, float], float]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
}
"""The operators for two amounts with the same unit."""

_JOINTS: Final[Mapping[str, Callable[[float, float], float]]] = {"and": min, "or": max}
_PRODUCTS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "*": operator.mul,
    "/": operator.truediv,
}


class _DomainValues(NamedTuple):
    """Usage and capacity of the metrics of an expression on one domain, by name of the metric."""

    usage: dict[str, float]
    capacity: dict[str, float]


_Compute = Callable[[_DomainValues], float]
"""A function that computes the value of a part of an expression.

:raises LookupError: a metric of the part has no value.
:raises ZeroDivisionError: the part divides by 0.
"""


@dataclass(frozen=True, slots=True)
class _ExpressionPart:
    """A part of an expression.

    - ``text`` is the part as text, for messages.
    - ``unit`` is the unit of its value; None for a plain amount such as ``12G``, which has the unit of the
      other operand.
    - ``metric`` is the name of the metric if the part is a single metric; otherwise it is empty.
    - ``has_capacity``: the part is a single metric, and the metric has a capacity.
    """

    text: str
    unit: MetricUnit | None
    compute: _Compute
    metric: str = ""
    has_capacity: bool = False


_Join = Callable[[_ExpressionPart, str, _ExpressionPart], _ExpressionPart]
"""A function that joins two parts of an expression by the operator between them."""


def is_expression(text: str) -> bool:
    """Whether the text of an option is an expression rather than the name of a metric."""
    return re.fullmatch(r"[A-Za-z0-9_]*", text.strip(), re.ASCII) is None


def normal_text(text: str) -> str:
    """The text of an expression with single blanks, which is the name of its metric."""
    return " ".join(text.split())


def parse_expression(text: str, metrics: Mapping[str, WatermarkMetric]) -> WatermarkMetric:
    """Parse an expression; return a metric that measures it.

    :param metrics: the metrics that the expression can name.
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
        evict=subject.evict,
        inputs=tuple(inputs),
        external=any(one.external for one in inputs.values()),
        has_capacity=False,
    )


def _combine_usage(compute: _Compute, measured: Mapping[str, MetricUsage]) -> MetricUsage:
    """The values of an expression, for each domain of its subject on which the values can be computed."""
    found = {}
    for domain in next(iter(measured.values())).host:
        values = _DomainValues({}, {})
        for name, one in measured.items():
            at = _matching_domain(one.host, domain)
            for amounts, known in ((values.usage, one.host), (values.capacity, one.capacity)):
                if at is not None and at in known:
                    amounts[name] = known[at]
        try:
            found[domain] = compute(values)
        except (LookupError, ZeroDivisionError):
            continue
    return MetricUsage(found)


def _matching_domain(host: Mapping[str, float], domain: str) -> str | None:
    """The domain of a metric that belongs to the subject's ``domain``; None if no domain does.

    A metric of the whole host belongs to each domain.
    """
    if domain in host:
        return domain
    if "" in host or domain:
        return "" if "" in host else None
    # If the subject is about the whole host, the cache with the largest usage is used.
    return max(host, key=lambda one: host[one], default=None)


class _ExpressionParser:
    """Parses by recursive descent, with a method for each precedence; ``inputs`` are the metrics in order."""

    def __init__(self, text: str, metrics: Mapping[str, WatermarkMetric]) -> None:
        self.inputs: list[str] = []
        self._metrics = metrics
        self._words = _split_words(text)
        self._next = 0

    def parse_whole(self) -> _ExpressionPart:
        """Parse the whole text.

        :raises ValueError: the text is no expression.
        """
        part = self._parse_alternatives()
        if self._present_word:
            raise ValueError(f"{self._present_word!r} is unexpected after {part.text!r}")
        return part

    @property
    def _present_word(self) -> str:
        return self._words[self._next] if self._next < len(self._words) else ""

    def _take_word(self, *words: str) -> str:
        """Consume and return the next word if it is one of ``words``; otherwise return an empty text."""
        found = self._present_word
        if found not in words:
            return ""
        self._next += 1
        return found

    def _parse_alternatives(self) -> _ExpressionPart:
        return self._parse_chain(("or",), self._parse_conjunction, _join_parts)

    def _parse_conjunction(self) -> _ExpressionPart:
        return self._parse_chain(("and",), self._parse_negation, _join_parts)

    def _parse_negation(self) -> _ExpressionPart:
        if not self._take_word("not"):
            return self._parse_comparison()
        part = self._parse_negation()
        compute = _condition_of(part)
        return _ExpressionPart(f"not {part.text}", MetricUnit.CONDITION, lambda values: 1 - compute(values))

    def _parse_comparison(self) -> _ExpressionPart:
        part = self._parse_sum()
        if sign := self._take_word(*_COMPARISONS):
            part = _compare_or_add(part, sign, self._parse_sum())
        return part

    def _parse_sum(self) -> _ExpressionPart:
        return self._parse_chain(_SUMS, self._parse_product, _compare_or_add)

    def _parse_product(self) -> _ExpressionPart:
        return self._parse_chain(_PRODUCTS, self._parse_operand, _multiply_parts)

    def _parse_chain(
        self, signs: Iterable[str], parse_next: Callable[[], _ExpressionPart], join: _Join
    ) -> _ExpressionPart:
        """Parse operands that are joined by any of ``signs``, from left to right."""
        part = parse_next()
        while sign := self._take_word(*signs):
            part = join(part, sign, parse_next())
        return part

    def _parse_operand(self) -> _ExpressionPart:
        if self._take_word("("):
            part = self._parse_alternatives()
            if not self._take_word(")"):
                raise ValueError(f"a parenthesis is missing after {part.text!r}")
            # An amount in parentheses keeps its text, which is parsed later in the unit of the other operand.
            return part if part.unit is None else replace(part, text=f"({part.text})")
        word = self._present_word
        self._next += 1
        if word[:1].isdigit():
            # The parsed value is used only for a factor. _align_parts() parses other amounts again, in the
            # unit of the other operand.
            return _ExpressionPart(word, None, lambda values: float(word))
        if word in self._metrics:
            if word not in self.inputs:
                self.inputs.append(word)
            metric = self._metrics[word]
            return _ExpressionPart(
                word, metric.unit, lambda values: values.usage[word], word, metric.has_capacity
            )
        if not word.isidentifier() or word in JOINING_WORDS:
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


def _join_parts(left: _ExpressionPart, word: str, right: _ExpressionPart) -> _ExpressionPart:
    choose, first, second = _JOINTS[word], _condition_of(left), _condition_of(right)
    return _ExpressionPart(
        f"{left.text} {word} {right.text}",
        MetricUnit.CONDITION,
        lambda values: choose(first(values), second(values)),
    )


def _compare_or_add(left: _ExpressionPart, sign: str, right: _ExpressionPart) -> _ExpressionPart:
    text = f"{left.text} {sign} {right.text}"
    unit, first, second = _align_parts(left, right, text)
    operate = _ALIGNED[sign]
    return _ExpressionPart(
        text,
        MetricUnit.CONDITION if sign in _COMPARISONS else unit,
        lambda values: float(operate(first(values), second(values))),
    )


def _multiply_parts(left: _ExpressionPart, sign: str, right: _ExpressionPart) -> _ExpressionPart:
    text = f"{left.text} {sign} {right.text}"
    multiply, first, second = _PRODUCTS[sign], left.compute, right.compute
    if MetricUnit.CONDITION in (left.unit, right.unit):
        raise ValueError(f"{text!r} multiplies or divides a condition")
    for part in (left, right):
        if part.unit is None and not part.text.replace(".", "", 1).isdigit():
            raise ValueError(f"{text!r}: {part.text} has a unit; multiply and divide by plain numbers")
    if sign == "/" and right.unit is None and float(right.text) == 0:
        raise ValueError(f"{text!r} divides by 0")
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
    """The common unit of two operands, and functions that compute their values in this unit.

    :raises ValueError: the operands have different units, or one operand is a condition.
    """
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
    return unit, _amount_of(left, unit, right), _amount_of(right, unit, left)


def _amount_of(part: _ExpressionPart, unit: MetricUnit, other: _ExpressionPart) -> _Compute:
    """A function that computes the value of an operand in ``unit``; ``other`` is the other operand.

    :raises ValueError: the operand is a wrong amount, or it is a percentage and ``other`` is not a single
        metric with a capacity.
    """
    if part.unit is not None:
        return part.compute
    # The last argument is True for an expression of several metrics, because the code below raises its own
    # error for such an expression.
    threshold = parse_threshold(part.text, unit, other.has_capacity or not other.metric)
    if not threshold.relative:
        return lambda values: threshold.value
    if not other.metric:
        raise ValueError(f"{part.text} is a share of a metric's capacity: compare it with one metric alone")
    return lambda values: threshold.value / 100 * values.capacity[other.metric]
