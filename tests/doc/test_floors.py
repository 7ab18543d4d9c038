"""The drawing of the floors marks imports that go up; none of our imports does."""

import pytest

from tests.doc.extensions import floors

HOUSE = [["roof"], ["east", "west"], ["ground"]]


@pytest.mark.parametrize(
    ("imports", "wrong"),
    [
        ({("roof", "ground"): 3, ("east", "ground"): 1}, {}),
        ({("ground", "roof"): 2, ("roof", "east"): 1}, {("ground", "roof"): 2}),
        ({("east", "west"): 1}, {("east", "west"): 1}),
        ({("garden", "roof"): 1}, {}),
    ],
)
def test_imports_that_go_up_or_sideways_are_named_and_red(imports, wrong):
    assert floors.against(HOUSE, imports) == wrong
    assert f"{sum(wrong.values())} up or sideways" in floors.summary("house", HOUSE, imports)
    assert floors.drawing("house", HOUSE, {}, imports).count(floors._UP) == len(wrong)


# fewer imports between folders mean that the graph was not read
LEAST = {"placement": 100, "placement_extras": 4, "compute_agent": 100}


@pytest.mark.parametrize("package", floors.PACKAGES)
def test_no_import_of_ours_goes_against_the_floors_and_every_folder_is_drawn(package):
    page = floors.page(package)
    modules, imports = floors.imports_of(package)
    assert floors.against(floors.floors_of(floors.ROOT / "pyproject.toml", package), imports) == {}
    assert sum(imports.values()) >= LEAST[package]
    for name, count in modules.items():
        assert f">{name} ({count})<" in page
