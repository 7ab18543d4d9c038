"""Names that operators depend on stay, until a release has called them deprecated."""

import pytest

from tests.stability import RECORD, current_names, recorded_names


@pytest.fixture(scope="module")
def current() -> dict[str, list[str]]:
    return current_names()


@pytest.mark.parametrize("kind", ["options", "commands", "metrics", "columns", "operations", "fields"])
def test_recorded_names_exist(kind: str, current: dict[str, list[str]]) -> None:
    gone = set(recorded_names()[kind]) - set(current[kind])
    assert not gone, f"{kind} that operators use are gone; give them a deprecated name, see {RECORD.name}"


def test_the_record_has_each_name_once_and_in_order() -> None:
    for kind, names in recorded_names().items():
        assert names == sorted(set(names)), kind
