"""Tests of the metrics of guests: one scrape reads the group of each guest, for at most the maximum number of
guests.
"""

import pytest
from prometheus_client import generate_latest

from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.usage.guest_metrics import CHOICE_SECONDS
from tests.compute_agent.builders import load_text
from tests.compute_agent.usage.metered_host import FILES, MeteredHost


def test_a_guest_has_its_use_its_limits_and_its_entitlements(tmp_path):
    host = MeteredHost(tmp_path)
    host.add("a", allocation={"n0": {"VCPU": 2, "MEMORY_MB": 5}, "n1": {"MEMORY_MB": 3}}, project_id="p")
    host.limits = {"watermarks": {"a": {ThrottleControl(CPU_QUOTA): 1.5}, "ended": {}}}
    assert host.series() == {
        ("info", "a", "a", "BE", "p", ""): 1,
        ("entitlement", "a", "VCPU"): 2,
        ("entitlement", "a", "MEMORY_MB"): 8,
        ("limit", "a", "cpu_quota", "", "watermarks"): 1.5,
        ("cpu_seconds_total", "a"): 2.5,
        ("throttled_seconds_total", "a"): 0.5,
        ("pressure_seconds_total", "a", "cpu"): 3,
        ("pressure_seconds_total", "a", "memory"): 0.25,
        ("memory_bytes", "a"): 4200,
        ("swap_bytes", "a"): 4096,
        ("major_faults_total", "a"): 7,
        ("io_bytes_total", "a", "read"): 105,
        ("io_bytes_total", "a", "write"): 30,
    }


@pytest.mark.parametrize("text", ["", "one two three\n", "usage_usec many\n", "\x00"])
def test_files_with_other_content_give_no_series(tmp_path, text):
    host = MeteredHost(tmp_path)
    host.add("a", dict.fromkeys(FILES, text))
    series = host.series()
    assert series.pop(("info", "a", "a", "BE", "", "")) == 1
    assert set(series.values()) <= {0}


def test_the_busiest_guests_of_the_last_minute_have_series(tmp_path):
    host = MeteredHost(tmp_path, most=2)
    for uuid in "abcd":
        host.add(uuid)
    host.burn("d", 10)
    assert host.guests() == {"a", "d"}
    host.burn("c", 9)
    host.burn("b", 8)
    assert host.guests() == {"a", "d"}
    host.now += CHOICE_SECONDS
    assert host.guests() == {"b", "c"}
    host.most = None
    assert host.guests() == {"a", "b", "c", "d"}


def test_a_name_without_a_form_in_utf_8_ends_no_scrape(tmp_path):
    host = MeteredHost(tmp_path)
    host.add("a", flavor="\ud800" + "x" * 1000)
    ((_, _, _, _, _, flavor),) = (key for key in host.series() if key[0] == "info")
    assert len(flavor) == 255
    assert generate_latest(host.registry)


def test_without_guests_of_their_own_no_file_is_read(tmp_path):
    host = MeteredHost(tmp_path, most=0)
    host.views = [None]
    assert host.series() == {}


@pytest.mark.parametrize(("text", "value"), [("all", None), ("0", 0), ("7", 7)])
def test_the_number_of_guests_is_an_option(tmp_path, text, value):
    assert load_text(tmp_path, f"[metrics]\nguests = {text}\n").metrics.guests == value


@pytest.mark.parametrize("text", ["-1", "many", "1.5", "ALL"])
def test_another_number_of_guests_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"guests|metrics"):
        load_text(tmp_path, f"[metrics]\nguests = {text}\n")
