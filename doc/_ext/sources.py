"""Finds in the sources of a package the metrics that it makes and the lines that it logs."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml


@dataclass(frozen=True)
class Metric:
    """A metric, with the name that it has in Prometheus."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


@dataclass(frozen=True, order=True)
class Message:
    """A line of the log as the source has it, with placeholders such as `%s` for its arguments."""

    level: str
    template: str
    module: str


_KINDS: Final = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
}
_TELLING: Final = ("record_done", "record_event")
"""Methods of the agent's EventRecorder, which also log the event."""

_FAILURES: Final = "log_failures"
"""A function of the agent that takes a text. It returns a function that logs this text with an exception."""

_LEVELS: Final = {"critical": "error", "error": "error", "exception": "error", "warning": "warning"}


@cache
def _calls(package: Path) -> tuple[tuple[str, ast.Call], ...]:
    """Return all calls in the sources of a package, each with its module; parse the sources only once."""
    return tuple(_read_calls(package))


def _read_calls(package: Path) -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(package.rglob("*.py")):
        if "migrations" in file.parts:
            continue
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield module, node


def _constant(node: ast.expr | None) -> Any:
    """Return the value of a literal; None if the expression is not a literal."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def metrics(package: Path) -> list[Metric]:
    """Return all metrics of a package, sorted by name."""
    found = []
    for _, call in _calls(package):
        kind = _KINDS.get(getattr(call.func, "id", getattr(call.func, "attr", "")))
        name = _constant(call.args[0]) if call.args else None
        if kind is None or not isinstance(name, str) or len(call.args) < 2:
            continue
        given = next((each.value for each in call.keywords if each.arg in ("labels", "labelnames")), None)
        labels = _constant(call.args[2] if len(call.args) > 2 else given) or ()
        suffix = "_total" if kind == "counter" else ""
        found.append(Metric(f"{name}{suffix}", kind, tuple(labels), str(_constant(call.args[1]))))
    return sorted(found, key=lambda metric: metric.name)


def metrics_page(package: Path) -> str:
    """Return a table of the metrics of a package, as markdown."""
    rows = ["| metric | kind | labels | |", "| --- | --- | --- | --- |"]
    for metric in metrics(package):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |")
    return "\n".join(rows)


def messages(package: Path) -> list[Message]:
    """Return all log lines of level WARNING and above, sorted by level and text.

    Lines whose whole text comes from arguments are left out.
    """
    found = set()
    for module, call in _calls(package):
        told = getattr(call.func, "attr", "") in _TELLING and len(call.args) > 3
        log = call.args[0] if told else call.func  # recorder.record_done(LOG.info, kind, guest, template)
        level = _LEVELS.get(getattr(log, "attr", ""))
        logger = getattr(getattr(log, "value", None), "id", "")
        template = _constant(call.args[3 if told else 0]) if call.args else None
        if getattr(call.func, "id", "") == _FAILURES and len(call.args) > 1:
            level, logger = "error", getattr(call.args[0], "id", "")
            template = _constant(call.args[1])
        if (
            level
            and logger == "LOG"
            and isinstance(template, str)
            and not re.fullmatch(r"(%\w|\W)*", template)
        ):
            found.add(Message(level, template, module))
    return sorted(found)


def remedies(file: Path) -> dict[str, str]:
    """Return the remedies of log lines, by the text of the line in the source."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def messages_page(package: Path, file: Path) -> str:
    """Return the errors and warnings that a package logs, with their remedies, as markdown."""
    known = remedies(file)
    lines = []
    for level, title in (("error", "Errors"), ("warning", "Warnings")):
        lines.append(f"\n## {title}\n")
        for message in messages(package):
            if message.level == level:
                lines.append(f"`{shown(message.template)}`")
                lines.append(f": {known.get(message.template, 'The rest of the line says what happened.')}\n")
    return "\n".join(lines)


def shown(template: str) -> str:
    """Return the text of a log line for readers, with an ellipsis for each placeholder."""
    return re.sub(r"%(\([a-z_]+\))?[0-9.]*[a-z]", "…", template)
