"""The lists of versions in tests/dependencies fit the ranges of setup.cfg."""

import configparser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.dependencies.__main__ import LISTS

ROOT = Path(__file__).parents[1]
EXTRAS = ("postgresql", "mysql", "memcached", "console", "fleet", "tracing")


def ranges() -> list[Requirement]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = [
        setup["options"]["install_requires"],
        *(setup["options.extras_require"][name] for name in EXTRAS),
    ]
    return [Requirement(line) for text in texts for line in text.splitlines() if line and line[0] != "#"]


def versions(path: Path) -> dict[str, Version]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): Version(number) for name, number in (line.split("==") for line in lines)}


@pytest.mark.parametrize("path", sorted(LISTS.glob("*.txt")), ids=lambda path: path.stem)
def test_each_list_has_a_version_in_the_range_of_every_dependency(path: Path) -> None:
    listed = versions(path)
    for each in ranges():
        assert listed[canonicalize_name(each.name)] in each.specifier, each


def test_the_lowest_list_has_the_lower_bounds() -> None:
    bounds: dict[str, Version] = {}
    for each in ranges():
        (part,) = each.specifier
        name, bound = canonicalize_name(each.name), Version(part.version)
        bounds[name] = max(bound, bounds.get(name, bound))
    lowest = versions(LISTS / "lowest.txt")
    assert {name: lowest[name] for name in bounds} == bounds
