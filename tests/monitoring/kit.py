"""What is in `etc/prometheus` and `etc/grafana`."""

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
    """The rules by their names, with the group of each."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule | {"group": group["name"]} for group in groups for rule in group["rules"]}


def dashboard(file: Path) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def queries(file: Path) -> Iterator[tuple[str, str]]:
    """The title of a panel, or the name of a variable, and each expression in it."""
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
    """The metrics of the service and the agent that it names, without what histograms and counters add."""
    return {re.sub(r"_(bucket|total)$", "", name) for name in _METRIC.findall(expression)}
