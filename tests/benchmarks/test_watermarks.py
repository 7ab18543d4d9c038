"""The measurement of the watermarks runs, and its counts are right."""

import json

from benchmarks import watermarks


def test_few_guests_are_touched_and_all_restored():
    found = watermarks.simulate_recovery(5, 0.3)
    assert (found.touched, found.fewest, found.rounds_to_recover) == (2, 2, 3)
    assert 0 < found.rounds_to_restore < 50


def test_results_are_printed_written_and_drawn(tmp_path, monkeypatch, capsys):
    target = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["watermarks", "--quick", "--json", str(target)])
    watermarks.main()
    assert capsys.readouterr().out.count("\n| ") >= 9
    found = json.loads(target.read_text())
    assert [one["guests"] for one in found["recoveries"]] == [1, 5] * 3
    assert [one["guests"] for one in found["costs"]] == [10]
    assert [one["guests"] for one in found["loops"]] == [10]
    assert found["loops"][0]["calm"] > 0
