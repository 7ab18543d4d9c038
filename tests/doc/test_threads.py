"""The table of threads has every thread that the agent starts, and its words are complete."""

import ast
import dataclasses
from pathlib import Path

from compute_agent import threads as agent_threads
from tests.doc.extensions import threads
from tests.doc.pages import ROOT

PACKAGE = ROOT / "compute_agent"
STARTER = Path(agent_threads.__file__)
STARTING = {"PeriodicTask", "run_aside", "start_thread", "start_timer"}


def calls(file):
    """Return the calls in a module by called name, with their first arguments."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            yield name, ast.unparse(node.args[0]) if node.args else ""


def modules():
    return [file for file in sorted(PACKAGE.rglob("*.py")) if file != STARTER]


def test_one_module_starts_all_threads():
    elsewhere = {file.name for file in modules() for name, _ in calls(file) if name in ("Thread", "Timer")}
    assert elsewhere == set()


def test_every_started_thread_has_a_role_in_the_table():
    started = {role for file in modules() for name, role in calls(file) if name in STARTING}
    listed = {
        name
        for module, _ in threads.roles()
        for name, value in vars(__import__(module, fromlist=["_"])).items()
        if isinstance(value, agent_threads.ThreadSpec)
    }
    assert started == listed


def test_every_row_is_complete_and_its_name_is_used_once():
    roles = [role for _, role in threads.roles()]
    assert len({role.name for role in roles}) == len(roles) > 15
    assert all(value or value == 0.0 for role in roles for value in dataclasses.astuple(role))


def test_the_page_has_a_row_for_each_role():
    rows = threads.page().splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == [f"`{role.name}`" for _, role in threads.roles()]
    assert all(row.count("|") == 7 for row in rows)
    assert "| `oom` | 2 s |" in threads.page()
