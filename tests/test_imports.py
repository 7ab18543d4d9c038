"""What import contracts cannot see: modules that are named in a text instead of imported.

The contracts read statements, wherever they stand; so what is imported late is imported by a statement too.
Commands are the exception: the command line names them, in the folder that it is in itself.
"""

import ast
from pathlib import Path

import pytest

from compute_agent.cmd.main import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path.relative_to(ROOT)
    for package in ("compute_agent", "placement")
    for path in (ROOT / package).rglob("*.py")
    if "migrations" not in path.relative_to(ROOT).parts
)
LOADERS = {"EntryPoint", "__import__", "exec", "import_class", "import_module", "import_string"}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_nothing_is_imported_by_its_name_but_commands(path):
    called = {
        getattr(node.func, "attr", getattr(node.func, "id", ""))
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Call)
    }
    allowed = {"EntryPoint"} if path == Path("compute_agent/cmd/main.py") else set()
    assert called & LOADERS == allowed


def test_commands_are_of_the_folder_that_names_them():
    assert {place.rpartition(".")[0] for place in COMMANDS.values()} == {"compute_agent.cmd"}
