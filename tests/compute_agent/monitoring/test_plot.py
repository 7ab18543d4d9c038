"""Tests of the picture of samples: each curve has its unit, is broken where values are unknown, and is
legible at any length.
"""

import math
import re
import time
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.drawing import svg
from compute_agent.monitoring.history import TimeSpan, plot_samples
from compute_agent.monitoring.samples import StoredSample

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def _zone(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def sample(at, cache=0, **values):
    return StoredSample(at, "uuid", "<web & co>", "LS", cache, **values)


def texts(picture):
    return [text.text for text in ET.fromstring(picture).iter(f"{SVG}text")]


def curves(picture):
    """The curves with this colour, without those of the legend, as lists of points."""
    found = []
    for path in ET.fromstring(picture).iter(f"{SVG}path"):
        if path.get("stroke-linejoin"):
            pieces = path.get("d").replace("h0", "").split("M")[1:]
            found.append(
                [[tuple(map(float, point.split())) for point in piece.split("L")] for piece in pieces]
            )
    return found


def test_axes_have_units_of_the_size_of_the_values():
    samples = [sample(n * 10.0, total=2.5e9, local=1e9, occupancy=3 * 2**20, cpu=1.5) for n in range(10)]
    seen = texts(plot_samples(samples, TimeSpan(0.0, 90.0)))
    assert seen[0] == "Guest <web & co>, uuid, class LS"
    assert {"Memory bandwidth (GB/s)", "Last-level cache filled (MiB)", "CPU in use (cores)"} <= set(seen)
    assert {"L3 0 total", "L3 0 local", "L3 0", "CPU", "time (UTC)", "1970-01-01", "00:00:15"} <= set(seen)
    small = texts(plot_samples([sample(0.0, total=5e6, occupancy=2048)], TimeSpan(0.0, 60.0)))
    assert {"Memory bandwidth (MB/s)", "Last-level cache filled (KiB)"} <= set(small)
    assert "CPU in use (cores)" not in small


def test_curves_are_broken_where_samples_are_missing_or_know_nothing():
    known = [n for n in range(40) if n not in range(20, 30)]
    samples = [sample(n * 10.0, total=None if n == 5 else 1e9, occupancy=0) for n in known]
    total, occupancy = curves(plot_samples(samples, TimeSpan(0.0, 400.0)))
    assert [len(piece) for piece in total] == [5, 14, 10]
    assert [len(piece) for piece in occupancy] == [20, 10]


def test_one_sample_is_a_dot():
    (total,) = [
        curve for curve in curves(plot_samples([sample(30.0, total=1e9)], TimeSpan(0.0, 60.0))) if curve
    ]
    assert [len(piece) for piece in total] == [1]


def test_the_most_used_caches_have_curves_and_the_others_share_one():
    samples = [
        sample(n * 10.0, cache, total=1e9 * cache, occupancy=cache) for n in range(5) for cache in range(16)
    ]
    seen = texts(plot_samples(samples, TimeSpan(0.0, 50.0)))
    assert {"L3 15 total", "L3 10 total", "10 other L3 total", "10 other L3"} <= set(seen)
    assert "L3 9 total" not in seen
    assert max(float(text) for text in seen if re.fullmatch(r"[0-9.]+", text)) >= 45  # 0 to 9 together


def test_samples_that_share_a_pixel_keep_their_peaks():
    samples = [sample(float(n), total=9e9 if n == 31234 else 1e9 + n % 7) for n in range(60_000)]
    picture = plot_samples(samples, TimeSpan(0.0, 60_000.0))
    points = [point for piece in curves(picture)[0] for point in piece]
    assert len(points) < 5000
    peak = min(points, key=lambda point: point[1])
    assert peak[0] == pytest.approx(svg._LEFT + 31234 / 60_000 * svg._WIDTH, abs=1)
    assert sum(1 for point in points if point[1] == peak[1]) == 1


@given(st.floats(1e-3, 1e13))
def test_scales_are_round_and_hold_the_highest_value(highest):
    scale = svg._ValueAxis.for_highest(highest, 0.0)
    assert scale.highest >= highest * 0.998
    assert scale.highest / scale.step <= 5.001
    assert scale.highest <= 2.6 * highest
    mantissa = scale.step / 10 ** math.floor(math.log10(scale.step) + 1e-9)
    assert any(math.isclose(mantissa, round_one) for round_one in (1, 2, 2.5, 5, 10))


@given(st.floats(0, 2e9), st.floats(1, 3e8))
@settings(deadline=None)
def test_marks_of_the_time_are_few_and_inside(since, length):
    marks = [mark.timestamp() for mark in svg._TimeAxis(since, since + length).time_marks()]
    assert len(marks) <= 9
    assert all(since - 1 <= mark <= since + length for mark in marks)
    assert len(marks) >= 2 or length < 5


def test_names_cannot_break_the_picture():
    odd = StoredSample(0.0, "u", "a\x00\x1b]</svg>", "x", 0, total=1.0)
    assert "</svg>" in texts(plot_samples([odd], TimeSpan(0.0, 1.0)))[0]
