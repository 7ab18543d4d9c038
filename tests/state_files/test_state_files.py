"""State files of every release are read, with all that they had."""

import json
from pathlib import Path

import pytest

from tests.state_files.reading import EXPECTED, READERS, RECORDED, copy_state, has_all, read_state

RELEASES = sorted(path.parent for path in RECORDED.glob(f"*/{EXPECTED}"))


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_state_files_of_a_release_are_read_without_a_loss(release: Path, tmp_path: Path) -> None:
    copy_state(release, tmp_path)
    expected = json.loads((release / EXPECTED).read_text())
    found = read_state(tmp_path)
    for name, recorded in expected.items():
        assert has_all(found[name], recorded), name
    assert not list(tmp_path.rglob("*.damaged*"))


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_recorded_release_has_guests_and_settings(release: Path) -> None:
    expected = json.loads((release / EXPECTED).read_text())
    assert set(expected) <= set(READERS)
    assert len(expected["state.json"]["guests"]) > 1
    assert len(expected["guests"]) > 1
    assert expected["guest-settings.json"]
    assert expected["events.jsonl"]


def test_a_missing_or_changed_value_is_noticed() -> None:
    recorded = {"guests": [{"name": "one", "cpus": [1, 2]}]}
    assert has_all({"guests": [{"name": "one", "cpus": [1, 2], "more": 1}], "new": 2}, recorded)
    assert not has_all({"guests": [{"name": "one"}]}, recorded)
    assert not has_all({"guests": [{"name": "one", "cpus": [1]}]}, recorded)
    assert not has_all({"guests": []}, recorded)
