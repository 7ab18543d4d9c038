"""Commands that show and test the thresholds of watermarks: ``watermark list`` and ``watermark test``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, AnyColumn, Commands
from compute_agent.throttling.watermarks.metrics import MetricUnit, WatermarkMetric, load_registry

_METRIC_COLUMNS: Final = ("metric", "unit", "action_priority", "throttled_by", "evicts", "computed")


class WatermarkList(AgentLister):
    """List the thresholds of the watermarks, with the current usage and the actions in force."""

    METHOD = "watermark.list"
    COLUMNS = (
        *("section", "metric", "unit", "domain", "mode", "action", "line", "amount", "usage", "gap"),
        *("streak", "for_samples", "in_force"),
    )
    EMPTY = (
        "Not configured: nothing is watched without a section [watermark:NAME] with a metric; --metrics lists"
        " all metrics."
    )

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--metrics",
            action="store_true",
            help="list the available metrics instead of the watermarks: built-in metrics, and metrics of"
            " installed packages; the option needs no daemon",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon for watermarks, or list the installed metrics; return the rows."""
        if parsed_args.metrics:
            return _METRIC_COLUMNS, [_metric_row(metric) for metric in load_registry().values()]
        return super().take_action(parsed_args)

    def request_rows(self, parsed_args: argparse.Namespace) -> list[Mapping[str, Any]]:
        """The thresholds, in which amounts have units."""
        return [_readable(row) for row in super().request_rows(parsed_args)]


class AmountColumn(AnyColumn):
    """A number that tables show with its unit; a percentage stays as the operator wrote it."""

    def __init__(self, value: Any, unit: str) -> None:
        super().__init__(value)
        self._unit = MetricUnit(unit)

    def human_readable(self) -> str:
        """The value with its unit; empty if there is no value."""
        if self._value is None:
            return ""
        if str(self._value).endswith("%"):
            return str(self._value)
        if self._unit is MetricUnit.CONDITION:
            return _condition_text(self._value)
        amount = float(self._value)
        match self._unit:
            case MetricUnit.BYTES:
                return _binary_text(amount)
            case MetricUnit.BYTES_PER_SECOND:
                return f"{_binary_text(amount)}/s"
            case MetricUnit.PERCENT:
                return f"{amount:.4g} %"
            case _:
                return f"{amount:.4g} {self._unit.value}".rstrip()


def _condition_text(value: Any) -> str:
    """The text for a threshold of a condition: ``true`` for 1, ``false`` for 0, or an empty text."""
    if isinstance(value, str):
        return value
    return {0.0: "false", 1.0: "true"}.get(value, "")


def _binary_text(amount: float) -> str:
    """A number of bytes with a binary unit, such as ``12 GiB``."""
    prefixes = iter(("", "Ki", "Mi", "Gi", "Ti"))
    prefix = next(prefixes)
    while abs(amount) >= 1024 and (larger := next(prefixes, None)) is not None:
        amount, prefix = amount / 1024, larger
    return f"{amount:.4g} {prefix}B"


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    amounts = {name: AmountColumn(row[name], row["unit"]) for name in ("line", "amount", "usage", "gap")}
    return {**row, **amounts}


def _metric_row(metric: WatermarkMetric) -> tuple[Any, ...]:
    """The row of a metric.

    The column ``computed`` lists the actions for which the agent can compute the amount that the action would
    free.
    """
    computed = {"throttle": metric.throttle_quantified, "evict": metric.evict_quantified}
    return (
        metric.name,
        metric.unit.value,
        metric.action_priority,
        "" if metric.lever is None else metric.lever.name,
        metric.evictable,
        " ".join(name for name, known in computed.items() if known),
    )


class WatermarkTest(AgentLister):
    """List the actions that the watermarks of a metric would cause at a given usage of the host.

    The command changes nothing. The command assumes the current use of each guest.
    """

    METHOD = "watermark.test"
    PARAMS = ("metric", "usage")
    COLUMNS = ("action", "guest", "name")
    EMPTY = "Nothing would be done: no threshold is exceeded, or all guests are protected."

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--usage",
            required=True,
            help="assumed usage of the host, in the format of thresholds: 92%% or 12G",
        )
        parser.add_argument(
            "--metric", default="cpu_usage", help="metric of the watermarks; default: cpu_usage"
        )


COMMANDS: Final[Commands] = {"watermark list": WatermarkList, "watermark test": WatermarkTest}
