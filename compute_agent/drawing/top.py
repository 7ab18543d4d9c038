"""The present state of a host as lines for a terminal: watermarks with bars, and guests with their use."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from compute_agent.drawing.host import format_size
from compute_agent.model.messages import on_one_line

Document = Mapping[str, Any]

_BAR: Final = 30
_NAME: Final = 24
_CPUS: Final = 18


@dataclass(frozen=True, slots=True)
class ShownUse:
    """The measured use of a guest. A value of None is unknown.

    :ivar cpu: the cores in use.
    :ivar cache: the bytes of L3 cache in use.
    :ivar bandwidth: the bytes of memory traffic a second.
    """

    cpu: float | None = None
    cache: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """The answers of the agent to several requests that a command sent at the same time.

    :ivar time: the time of the answers as text.
    :ivar groups: the resctrl groups.
    :ivar uses: the measured use of each guest, by its uuid.
    :ivar trouble: the failed requests with their reasons; empty if there are no failures.
    """

    time: str
    status: Document = field(default_factory=dict)
    guests: Sequence[Document] = ()
    watermarks: Sequence[Document] = ()
    groups: Sequence[Document] = ()
    uses: Mapping[str, ShownUse] = field(default_factory=dict)
    trouble: str = ""


ORDERS: Final[Mapping[str, Callable[[Document, ShownUse], float]]] = {
    "cpu": lambda guest, use: -(use.cpu or 0.0),
    "cache": lambda guest, use: -(use.cache or 0),
    "bandwidth": lambda guest, use: -(use.bandwidth or 0.0),
    "name": lambda guest, use: 0.0,
}
"""The sort key of each order of guests, by the order's name; guests with equal keys are sorted by name."""


def screen_lines(seen: AgentSnapshot, order: str, width: int, height: int) -> list[str]:
    """The lines of the screen: at most ``height`` lines with at most ``width`` characters each.

    :param order: the order of guests, a key of :data:`ORDERS`.
    """
    head = [*_head_lines(seen), "", *_watermark_lines(seen.watermarks)]
    rows = list(_guests(seen, order))
    room = max(height - len(head) - 1, 1)
    left_out = len(rows) - room
    if left_out > 0:
        rows = [*rows[: room - 1], f"... and {left_out + 1} more"]
    lines = [*head, _HEADING, *rows]
    return [on_one_line(line)[:width] for line in lines[:height]]


def _head_lines(seen: AgentSnapshot) -> Iterator[str]:
    status = seen.status
    new = status.get("new_guests")
    parts = [
        f"{status.get('provider', '?')} at {seen.time}",
        f"Placement {status.get('placement', '?')}",
        f"cache control {str(status.get('cache_control', '?')).partition(':')[0]}",
        f"{len(seen.guests)} {'guest' if len(seen.guests) == 1 else 'guests'}",
        *([f"new guests: {new}"] if new else []),
    ]
    yield " | ".join(parts)
    for what in ("refused", "lost", "stray", "unallocated", "overdue"):
        if those := status.get(f"{what}_guests"):
            yield f"{len(those)} {what}: {', '.join(map(str, those))}"
    if seen.trouble:
        yield seen.trouble


def _watermark_lines(rows: Sequence[Document]) -> Iterator[str]:
    for (section, metric, domain), lines in groupby(
        rows, key=lambda row: (row["section"], row["metric"], row["domain"])
    ):
        those = list(lines)
        usage, unit = those[0]["usage"], those[0]["unit"]
        amounts = {row["action"]: row["amount"] for row in those if row["amount"] is not None}
        said = ", ".join(f"{action} {_format_amount(amount, unit)}" for action, amount in amounts.items())
        where = f"{section}: {metric}{f' {domain}' if domain else ''}"
        now = "?" if usage is None else _format_amount(usage, unit)
        yield f"{where:{_NAME + 8}} {_draw_bar(usage, amounts.values())} {now} ({said})"
        for deed in (deed for row in those for deed in row["in_force"]):
            yield f"{'':{_NAME + 8}} {deed}"
    if rows:
        yield ""


def _format_amount(amount: float, unit: str) -> str:
    """An amount with a readable unit, such as ``46.8 GiB`` for bytes."""
    match unit:
        case "bytes":
            return format_size(round(amount / 1024))
        case "bytes/s":
            return f"{amount / 1e6:.0f} MB/s"
        case "percent":
            return f"{round(amount, 1):g} %"
        case "condition":
            # The threshold "true" is between the usages 0 and 1 of a condition, and "false" is below it.
            return "true" if amount >= 0.5 else "false"
        case _:
            return f"{round(amount, 1):g} {unit}".rstrip()


def _draw_bar(usage: float | None, amounts: Collection[float]) -> str:
    """A bar of text, filled up to the usage, with a mark at each threshold of the watermark."""
    # The bar ends a tenth above the highest number, so that a mark is never at its end. The tiny number
    # avoids a division by 0.
    whole = max([usage or 0.0, *amounts, 1e-9]) * 1.1
    filled = round((usage or 0.0) / whole * _BAR)
    cells = ["#" if at < filled else "." for at in range(_BAR)]
    for amount in amounts:
        cells[min(round(amount / whole * _BAR), _BAR - 1)] = "|"
    return f"[{''.join(cells)}]"


_COLUMNS: Final = "{:" + str(_NAME) + "} {:5} {:" + str(_CPUS) + "} {:6} {:>6} {:>9} {:>10} {:>8}  {}"
_HEADING: Final = _COLUMNS.format("GUEST", "CLASS", "CPUS", "NODES", "CORES", "CACHE", "MEMORY/s", "WAYS", "")


def _guests(seen: AgentSnapshot, order: str) -> Iterator[str]:
    ways = {name: _format_ways(group) for group in seen.groups for name in group["guests"]}
    key = ORDERS[order]
    none = ShownUse()
    for guest in sorted(
        seen.guests, key=lambda one: (key(one, seen.uses.get(one["uuid"], none)), one["name"])
    ):
        use = seen.uses.get(guest["uuid"], none)
        limits = [f"{knob} {limit:g}" for knob, limit in guest["limits"].items()]
        yield _COLUMNS.format(
            _shorten_text(on_one_line(guest["name"]), _NAME),
            guest["qos_class"],
            _shorten_text(guest["cpus"] or "none", _CPUS),
            _shorten_text(guest["numa_nodes"], 6),
            "" if use.cpu is None else f"{use.cpu:.2f}",
            "" if use.cache is None else format_size(round(use.cache / 1024)),
            "" if use.bandwidth is None else f"{use.bandwidth / 1e6:.0f} MB",
            ways.get(guest["name"], ""),
            "; ".join(filter(None, (", ".join(limits), guest["reason"], *guest["refused"]))),
        ).rstrip()


def _format_ways(group: Document) -> str:
    """The number of cache ways of a group for each L3 cache, such as ``4/8``; one number if all are equal."""
    numbers = list(group["ways"].values())
    return str(numbers[0]) if len(set(numbers)) == 1 else "/".join(map(str, numbers))


def _shorten_text(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}~"
