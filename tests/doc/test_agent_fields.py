"""The page about the agent's fields has each field of ``status`` and ``guest show``, and no other field."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from compute_agent.agent import documents
from compute_agent.agent.operator_orders import MaintenanceMode
from compute_agent.drivers.containers.table import CONTAINER, POD
from compute_agent.loops.allocations import HistoryWatch
from compute_agent.loops.fleet import FleetLoop
from compute_agent.loops.reports import status_document
from compute_agent.model.guest_settings import SETTING_NAMES
from tests.doc.pages import SITE

STATUS: list[Callable[..., Any]] = [
    documents.agent_document,
    documents.guests_document,
    status_document,
    HistoryWatch.status_fields,
    MaintenanceMode.status_fields,
    FleetLoop.status_fields,
]
DETAILS = {"command", "log", "origin", "unit", CONTAINER, POD}
"""Facts that drivers add to the fields of their guests."""
OF_STARTS = {"ended"}
"""Fields of the answer to ``guest run`` that the page lists with the fields of guests."""


def fields_of(function: Callable[..., Any]) -> set[str]:
    """The constant keys of the dict that a function returns, and of dicts that it unpacks into this dict."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return {key for value in returned if isinstance(value, ast.Dict) for key in _keys(value)}


def _keys(node: ast.Dict) -> Iterator[str]:
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant):
            yield str(key.value)
        elif key is None:
            for unpacked in ast.walk(value):
                if isinstance(unpacked, ast.Dict):
                    yield from _keys(unpacked)


def section(title: str) -> str:
    page = (SITE / "reference/agent-fields.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def listed_fields(title: str) -> list[str]:
    cells = re.findall(r"^\| (`[^|]+) \|", section(title), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_page_lists_the_fields_of_status() -> None:
    fields = set().union(*map(fields_of, STATUS))
    assert {"pid", "placement", "refused_guests", "guests_kept", "disabled", "fleet"} <= fields
    assert sorted(listed_fields("Fields of `status`")) == sorted(fields)


def test_the_page_lists_the_fields_of_guests() -> None:
    fields = fields_of(documents.guest_document)
    assert {"uuid", "cgroup", "refused"} <= fields
    assert sorted(listed_fields("Fields of `guest show`")) == sorted(fields | DETAILS | OF_STARTS)
    assert set(SETTING_NAMES) <= set(re.findall(r"`(\w+)`", section("Fields of `guest show`")))
