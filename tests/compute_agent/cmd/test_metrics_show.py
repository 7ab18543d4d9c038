"""Tests of `compute-agent metrics show`, which reads a file of samples and needs no daemon."""

import csv
import io
import json
import time
import xml.etree.ElementTree as ElementTree
from datetime import datetime

import pytest
import yaml

from compute_agent.monitoring.samples import SampleStore, StoredSample
from tests.compute_agent.cmd.agents import run_here

ONE = "11111111-0000-4000-8000-000000000001"
USE = ("llc_occupancy_bytes", "local_bytes_per_second", "total_bytes_per_second", "cpu_cores")


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def now(state):
    """The end of the stored samples of one guest. Samples of another guest and of a class end a day
    before.
    """
    now = time.time() // 1
    store = SampleStore(state / "samples.db", 1e9, 10**9)
    store.add(
        StoredSample(now - ago, ONE, "web", "LS", cache, 3 * 2**20, 1.5e6, 2e6 + ago, 0.25)
        for ago in range(0, 7200, 60)
        for cache in (0, 1)
    )
    store.add(
        [
            StoredSample(now - 86400, "two", "db", "BE", 0, 5),
            StoredSample(now - 86400, "", "", "LS", 0, 7, None, 9.0),
        ]
    )
    store.flush(now)
    store.close()
    return now


@pytest.fixture
def cli(tmp_path, state):
    ini = tmp_path / "agent.ini"
    ini.write_text(f"[DEFAULT]\nstate_path = {state}\n")

    def cli(*arguments):
        done = run_here(ini, "metrics", "show", *arguments)
        return done.returncode, done.stdout, done.stderr

    return cli


def test_the_last_hour_of_a_guest_is_shown_by_default(cli, now):
    status, out, _ = cli(ONE, "-f", "json")
    rows = json.loads(out)
    assert status == 0
    assert len(rows) in (118, 120)  # 59 or 60 minutes of two caches
    assert datetime.fromisoformat(rows[-1].pop("time")).timestamp() == now
    assert rows[-1] == dict(zip(("cache_id", *USE), (1, 3145728, 1500000, 2000000, 0.25), strict=True))


@pytest.mark.parametrize(
    ("arguments", "minutes"),
    [(["--since", "10m"], 10), (["--since", "2h", "--until", "110m"], 10), (["--since", "7d"], 120)],
)
def test_samples_of_other_times_are_shown(cli, now, arguments, minutes):
    rows = json.loads(cli("web", *arguments, "-f", "json")[1])
    assert abs(len(rows) / 2 - minutes) <= 1


def test_a_time_may_be_a_date(cli, now):
    since = datetime.fromtimestamp(now - 120).isoformat()
    until = datetime.fromtimestamp(now - 60).astimezone().isoformat()
    assert len(json.loads(cli("web", "--since", since, "--until", until, "-f", "json")[1])) == 4


def test_without_a_guest_the_last_values_of_all_are_shown(cli, now):
    rows = json.loads(cli("-f", "json")[1])
    assert [(row["guest"], row["name"], row["class"]) for row in rows] == [
        ("", "", "LS"),
        ("two", "db", "BE"),
        (ONE, "web", "LS"),
    ]
    assert [rows[2][name] for name in USE] == [2 * 3145728, 3000000, 4000000, 0.25]  # all caches together
    assert [rows[0][name] for name in USE] == [7, None, 9, None]


def test_samples_are_printed_in_every_format(cli, now):
    rows = list(csv.DictReader(io.StringIO(cli("two", "--since", "2d", "-f", "csv")[1])))
    assert [rows[0][name] for name in USE] == ["5", "", "", ""]
    assert yaml.safe_load(cli("two", "--since", "2d", "-f", "yaml")[1])[0]["llc_occupancy_bytes"] == 5
    table = cli("web", "--since", "5m")[1]
    assert "3 MiB" in table
    assert "1.5 MB/s" in table
    assert f"{datetime.fromtimestamp(now):%Y-%m-%d %H:%M:%S}" in table
    assert "None" not in cli()[1]


def test_samples_are_drawn_as_a_picture(cli, now, tmp_path):
    status, picture, _ = cli("web", "--since", "2h", "-f", "svg")
    assert status == 0
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    file = tmp_path / "web.svg"
    status, out, _ = cli("web", "-f", "json", "--svg", file)
    assert status == 0
    assert json.loads(out)
    assert "Memory bandwidth (MB/s)" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], "no samples of a guest or class nobody"),
        (["two"], "no samples of two from"),
        (["web", "--since", "1m", "--until", "1h"], "ends before it begins"),
        (["-f", "svg"], "name it"),
        (["--svg", "x.svg"], "name it"),
    ],
)
def test_requests_that_cannot_be_shown_are_errors_with_the_reason(cli, now, arguments, words):
    status, out, err = cli(*arguments)
    assert (status, out) == (1, "")
    assert words in err


@pytest.mark.parametrize("text", ["yesterday", "99999999d", "1000000000000d", "9" * 400])
def test_an_invalid_time_is_wrong_usage(cli, now, text):
    status, _, err = cli("web", "--since", text)
    assert status == 2
    assert f"'{text}' is neither a length of time" in err


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (
            "[monitoring]\nstore_interval = 0\n",
            "[monitoring] store_interval = 0 keeps none",
        ),
        ("", "no agent answers on"),
    ],
)
@pytest.mark.parametrize("has_file", [True, False])
def test_without_samples_the_reason_is_shown(tmp_path, state, section, reason, has_file):
    if has_file:
        SampleStore(state / "samples.db", 1e9, 10**9).close()
    ini = tmp_path / "agent.ini"
    ini.write_text(f"[DEFAULT]\nstate_path = {state}\n{section}")
    done = run_here(ini, "metrics", "show")
    assert done.returncode == 1
    assert f"there are no samples in {state / 'samples.db'}: {reason}" in done.stderr
