"""Draws the panels of a dashboard over time, with the data of a Prometheus.

The pictures have the queries, titles and legends of the dashboard's file. Grafana draws the panels side
by side, and some of them as single numbers or bars; here each panel is a chart of curves.
"""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from compute_agent.drawing.svg import COLOURS, ChartCurve, ChartPanel, draw_chart
from tests.monitoring.kit import dashboard

VARIABLES: Final = {"instance": ".*", "guest": ".*", "resource": ".*"}
"""The variables of dashboards, with all of their values chosen."""

_STEP: Final = 5
_MOST_CURVES: Final = 11
"""Number of legends beside a panel; further curves are left out."""

_DIVISORS: Final = {"bytes": (2**20, "MiB"), "Bps": (1e6, "MB/s"), "percentunit": (0.01, "%"), "s": (1, "s")}


def draw_dashboard(
    file: Path, prometheus: str, since: float, until: float, variables: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Draw a dashboard as SVG.

    :param prometheus: URL of the server.
    :param since: the first second since the epoch; ``until`` is the last.
    :param variables: the values of the dashboard's variables.
    :return: the document, and the titles of panels without data, which are not drawn.
    """
    document = dashboard(file)
    panels, empty = [], []
    for panel in document["panels"]:
        series = [
            found
            for target in panel["targets"]
            for found in _curves_of(target, prometheus, since, until, variables)
        ]
        if not series:
            empty.append(panel["title"])
            continue
        divisor, unit = _DIVISORS.get(panel["fieldConfig"]["defaults"]["unit"], (1, ""))
        curves = [
            ChartCurve(
                name[:24],
                COLOURS[number % len(COLOURS)],
                [(time, value / divisor) for time, value in points],
                dashed=number >= len(COLOURS),
            )
            for number, (name, points) in enumerate(series[:_MOST_CURVES])
        ]
        panels.append(ChartPanel(f"{panel['title']} ({unit})" if unit else panel["title"], curves))
    return draw_chart(document["title"], panels, since, until, 4 * _STEP), empty


def _curves_of(
    target: Mapping[str, Any], prometheus: str, since: float, until: float, variables: Mapping[str, str]
) -> list[tuple[str, list[tuple[float, float]]]]:
    """The curves of a query, each with its legend."""
    asked = urllib.parse.urlencode(
        {
            "query": fill_in(target["expr"], variables),
            "start": since,
            "end": until,
            "step": _STEP,
        }
    )
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{asked}", timeout=60) as answer:
        found = json.load(answer)["data"]["result"]
    return [
        (
            _legend(target.get("legendFormat", ""), series["metric"]),
            [(float(time), float(value)) for time, value in series["values"] if value not in ("NaN", "+Inf")],
        )
        for series in found
    ]


def _legend(template: str, labels: Mapping[str, str]) -> str:
    if not template:
        return ", ".join(
            value for name, value in labels.items() if name not in ("__name__", "instance", "job")
        )
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template)


def fill_in(expression: str, variables: Mapping[str, str], rate_interval: str = "30s") -> str:
    """A query as Grafana sends it, with values in place of its variables."""
    expression = expression.replace("$__rate_interval", rate_interval)
    for name, value in variables.items():
        expression = expression.replace(f'="${name}"', f'=~"{value}"').replace(f'=~"${name}"', f'=~"{value}"')
    return expression
