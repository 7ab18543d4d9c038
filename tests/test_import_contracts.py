"""The kind of import contract of our own refuses what its list lacks, and entries without an import."""

import grimp
import pytest

from tests.import_contracts import AllowedImports

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
