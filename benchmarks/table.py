"""The results, as text for people and as JSON for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.measure import ComparisonResult, RepeatSample

_HEAD = ("", "unit", "ours", "reference", "ratio", "ours again", "CPU ms", "goal", "")


def format_table(results: Sequence[ComparisonResult]) -> str:
    """Return a Markdown table with one section after the other: medians, and the range of our repeats."""
    rows: list[Sequence[str]] = [_HEAD]
    sections: dict[str, list[ComparisonResult]] = {}
    for result in results:
        sections.setdefault(result.section, []).append(result)
    for section, members in sections.items():
        rows += [(f"**{section}**", *[""] * (len(_HEAD) - 1)), *map(_table_row, members)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _table_row(result: ComparisonResult) -> Sequence[str]:
    reached = {True: "reached", False: "missed", None: ""}[result.goal_reached]
    if result.bound is not None:
        goal = f"≤ {_format_number(result.bound)}"
    elif result.cpu_goal is not None:
        goal = f"≥ {_format_number(result.cpu_goal)}x by CPU"
    else:
        goal = "" if result.goal is None else f"≥ {_format_number(result.goal)}x"
    ratio = "" if result.median_ratio is None else f"{_format_number(result.median_ratio)}x"
    remarks = [reached, *_result_remarks(result)]
    return (
        result.name,
        result.unit,
        _sample_cell(result.ours, spread=True),
        "" if result.reference is None else _sample_cell(result.reference),
        ratio,
        "" if result.again is None else _sample_cell(result.again),
        _cpu_cell(result),
        goal,
        "; ".join(remark for remark in remarks if remark),
    )


def _cpu_cell(result: ComparisonResult) -> str:
    """Return the CPU time of our workers, of the reference's workers, and their ratio."""
    ours, reference = result.cpu.get("ours"), result.cpu.get("reference")
    if not ours:
        return ""
    if not reference or result.cpu_ratio is None:
        return _format_number(ours)
    return f"{_format_number(ours)} : {_format_number(reference)} = {_format_number(result.cpu_ratio)}x"


def _result_remarks(result: ComparisonResult) -> Iterable[str]:
    if result.notes.get("same answer") is False:
        yield "ANSWERS DIFFER"
    for side in ("ours", "reference"):
        notes = result.notes.get(side)
        if isinstance(notes, Mapping):
            failed = {
                status: count for status, count in notes["answers"].items() if not status.startswith("2")
            }
            if failed:
                yield f"{side} failed: " + ", ".join(
                    f"{count} x {status}" for status, count in failed.items()
                )


def _sample_cell(sample: RepeatSample, *, spread: bool = False) -> str:
    if sample.median_value is None:
        return sample.failure.rpartition(": ")[2] if sample.failure else "-"
    text = _format_number(sample.median_value)
    if spread and len(sample.values) > 1:
        text += f" ({_format_number(min(sample.values))} to {_format_number(max(sample.values))})"
    return text


def _format_number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def as_json(results: Iterable[ComparisonResult], machine: Mapping[str, Any]) -> str:
    """Return all repeats and notes."""
    return json.dumps(
        {"machine": machine, "results": [_plain_result(result) for result in results]}, indent=1
    )


def _plain_result(result: ComparisonResult) -> dict[str, Any]:
    sides = {"ours": result.ours, "again": result.again, "reference": result.reference}
    return {
        "section": result.section,
        "name": result.name,
        "unit": result.unit,
        **{
            name: {"median": sample.median_value, "repeats": list(sample.values), "failure": sample.failure}
            for name, sample in sides.items()
            if sample is not None
        },
        "ratio": result.median_ratio,
        "worker CPU ms": result.cpu,
        "goal": result.goal,
        "CPU goal": result.cpu_goal,
        "bound": result.bound,
        "reached": result.goal_reached,
        "notes": result.notes,
    }
