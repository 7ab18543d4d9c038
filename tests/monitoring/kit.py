"""Readers of the files in `etc/prometheus` and `etc/grafana`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (ROOT / "placement", ROOT / "placement_extras", ROOT / "compute_agent")
ETC: Final = ROOT / "etc"
RULES: Final = ETC / "prometheus" / "placement-compute.rules.yaml"
DASHBOARDS: Final = sorted((ETC / "grafana").glob("*.json"))

_METRIC: Final = re.compile(r"\b(?:openstack_placement|placement|compute_agent|process)_\w+")


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name, each with its group."""
    return {rule["alert"]: rule for rule in _rules() if "alert" in rule}


def records() -> dict[str, dict[str, Any]]:
    """Return the recording rules by name, each with its group."""
    return {rule["record"]: rule for rule in _rules() if "record" in rule}


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule | {"group": group["name"]} for group in groups for rule in group["rules"]]


def dashboard(file: Path) -> dict[str, Any]:
    """Read a dashboard in Grafana's format."""
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def queries(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each expression with the title of its panel or the name of its variable."""
    document = dashboard(file)
    for panel in document["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            (metric, _label) = re.fullmatch(
                r"label_values\((.+), (\w+)\)", variable["query"]["query"]
            ).groups()  # type: ignore[union-attr]  # it is one
            yield variable["name"], metric


def metrics_in(expression: str) -> set[str]:
    """Return the metrics of service and agent in an expression, without suffixes of their kinds."""
    return {re.sub(r"_(bucket|total)$", "", name) for name in _METRIC.findall(expression)}
