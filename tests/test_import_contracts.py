"""Tests of our own kind of import contract, and of the order of layers in the tables of folders."""

import re
import tomllib
from pathlib import Path

import grimp
import pytest

from tests.import_contracts import AllowedImports

ROOT = Path(__file__).parents[1]
CONTRACT = {"name": "extra", "type": "allowed_imports", "package": "extra", "uses": "core"}


def imports(*pairs):
    graph = grimp.ImportGraph()
    for importer, imported in pairs:
        graph.add_import(importer=importer, imported=imported)
    return graph


@pytest.mark.parametrize(
    ("allowed", "refused", "unused"),
    [
        (["core.search", "core.search.request"], [], []),
        (["core.search"], ["extra.pages -> core.search.request"], []),
        (["core.search", "core.search.request", "core.db"], [], ["core.db"]),
    ],
)
def test_direct_imports_are_compared_with_the_list(allowed, refused, unused):
    graph = imports(
        ("extra.pages", "core.search.request"),
        ("extra", "core.search"),
        ("extra.pages", "extra.forms"),
        ("other", "core.db"),
        ("core.search", "core.db"),
        ("extra", "corelike"),
    )
    for name in ("extra.pages", "extra.forms"):
        graph.add_module(name)
    contract = AllowedImports(
        name="extra", session_options={}, contract_options={**CONTRACT, "allowed": allowed}
    )
    check = contract.check(graph, verbose=False)
    assert check.metadata == {"refused": refused, "unused": unused}
    assert check.kept == (not refused and not unused)


@pytest.mark.parametrize("package", ["placement", "placement_extras", "compute_agent"])
def test_the_tables_of_folders_have_the_order_of_the_layers(package):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == [package])
    ranks = {name.strip("() "): rank for rank, layer in enumerate(layers) for name in layer.split("|")}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition(f"### {package}\n")[2].partition("\n#")[0].partition("| --- |")[2]
    folders = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.M)
    assert len(folders) > 3
    assert [ranks[name] for name in folders] == sorted(ranks[name] for name in folders)
