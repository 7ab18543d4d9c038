"""Tests that each microversion has exactly one name."""

import re
from pathlib import Path

from placement import microversion


def _named() -> dict[str, microversion.Microversion]:
    return {
        name: value
        for name, value in vars(microversion).items()
        if name.isupper() and name not in ("MIN", "MAX", "OF_CANDIDATES")
    }


def test_each_version_from_the_first_to_the_last_has_one_name() -> None:
    named = _named()
    assert sorted(named.values()) == [(1, minor) for minor in range(40)]
    assert list(named.values()) == sorted(named.values())
    assert (microversion.MIN, microversion.MAX) == ((1, 0), (1, 39))


def test_bodies_accept_the_versions_that_have_candidates() -> None:
    minors = [minor for minor in range(100) if re.match(microversion.OF_CANDIDATES, f"1.{minor}")]
    assert minors == [*range(microversion.CANDIDATES[1], microversion.MAX[1] + 1)]


def test_each_name_has_a_comment_about_its_version() -> None:
    source = Path(microversion.__file__).read_text()
    for name, (major, minor) in _named().items():
        assert re.search(rf"^# {major}\.{minor}: .+\n{name}: ", source, re.M), name


def test_the_service_compares_with_names_only() -> None:
    package = Path(microversion.__file__).parent
    literal = re.compile(r"(version\s*(<|>=|>|<=|==)|since=|since\()\s*\(\d")
    for path in package.rglob("*.py"):
        assert not literal.search(path.read_text()), path
