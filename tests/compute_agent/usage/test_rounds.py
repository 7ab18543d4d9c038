"""Tests of one round of measurement, and of the values that it keeps after its end."""

from pathlib import Path

from compute_agent.monitoring.readings import CacheReading
from compute_agent.usage.rounds import MeasuringRound


class Reader:
    """A reader of caches that counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def read(self) -> CacheReading:
        self.asked += 1
        return CacheReading(bandwidth={"0": 5.0})


def test_a_requested_value_is_read_once_and_kept(tmp_path: Path) -> None:
    file, reader = tmp_path / "number", Reader()
    file.write_text("1")
    now = MeasuringRound(0.0, "/", (), reader)
    assert now.parse_file(str(file), int) == 1
    file.write_text("2")
    assert now.parse_file(str(file), int) == 1
    assert now.parse_file(str(file), float) == 1.0  # of the same text
    assert [now.read_caches().bandwidth, now.read_caches().bandwidth] == [{"0": 5.0}, {"0": 5.0}]
    assert reader.asked == 1


def test_a_round_that_is_closed_knows_what_it_knew_and_reads_nothing_more(tmp_path: Path) -> None:
    known, unknown, reader = tmp_path / "known", tmp_path / "unknown", Reader()
    known.write_text("1")
    unknown.write_text("2")
    now = MeasuringRound(0.0, "/", (), reader)
    assert now.parse_file(str(known), int) == 1
    now.close()
    assert now.parse_file(str(known), int) == 1
    assert now.parse_file(str(known), float) is None
    assert now.parse_file(str(unknown), int) is None
    assert now.read_caches() == CacheReading()
    assert reader.asked == 0


def test_missing_and_malformed_values_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("many")
    now = MeasuringRound(0.0, "/", ())
    assert now.parse_file(str(tmp_path / "text"), int) is None
    assert now.parse_file(str(tmp_path / "missing"), int) is None
    assert now.read_caches() == CacheReading()
