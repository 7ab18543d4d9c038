"""Import contracts cannot see modules that are imported by a name in a string, so no code does that.

The contracts read all import statements, including those in functions.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path.relative_to(ROOT)
    for package in ("compute_agent", "placement", "placement_extras")
    for path in (ROOT / package).rglob("*.py")
    if "migrations" not in path.relative_to(ROOT).parts
)
LOADERS = {"EntryPoint", "__import__", "exec", "import_class", "import_module", "import_string"}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_module_is_imported_by_a_name_in_a_string(path):
    called = {
        getattr(node.func, "attr", getattr(node.func, "id", ""))
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Call)
    }
    assert called & LOADERS == set()


def test_tests_import_builders_and_no_test_modules():
    """A helper of several tests is in a module of its own, where a reader looks for it."""
    imported = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
        for name in ((node.module or "").split(".")[-1], *(each.name for each in node.names))
        if name.startswith("test_")
    }
    assert imported == set()
