"""The measurement of monitoring still runs."""

from benchmarks import monitoring


def test_each_size_has_a_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["monitoring", "--rounds", "2"])
    monitoring.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "10 guests, 2 caches",
        "100 guests, 2 caches",
        "100 guests, 8 caches",
    ]
