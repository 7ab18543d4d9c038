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

from compute_agent.drawing.svg import ChartCurve, ChartPanel, draw_chart
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


def time_axis(picture):
    """The x coordinates of the two ends of the axis of time, from a horizontal line of the picture."""
    found = re.search(r'd="M([0-9.]+) [0-9.]+h([0-9.]+)" stroke=', picture)
    return float(found[1]), float(found[1]) + float(found[2])


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
    begin, end = time_axis(picture)
    assert peak[0] == pytest.approx(begin + 31234 / 60_000 * (end - begin), abs=1)
    assert sum(1 for point in points if point[1] == peak[1]) == 1


@given(st.floats(1e-3, 1e13))
def test_scales_are_round_and_hold_the_highest_value(highest):
    panel = ChartPanel("", [ChartCurve("", "#000", [(0.0, highest)])])
    picture = ET.fromstring(draw_chart("", [panel], 0.0, 1.0, 1.0))
    lines = [float(one.text) for one in picture.iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    top, step = lines[-1], lines[1] - lines[0]
    assert (lines[0], lines) == (0.0, sorted(lines))
    assert highest * 0.998 <= top <= 2.6 * highest
    assert len(lines) <= 6
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert any(math.isclose(mantissa, round_one, rel_tol=1e-5) for round_one in (1, 2, 2.5, 5, 10))


@given(st.floats(0, 2e9), st.floats(1, 3e8))
@settings(deadline=None)
def test_marks_of_the_time_are_few_and_inside(since, length):
    panel = ChartPanel("", [ChartCurve("", "#000", [(since, 1.0)])])
    picture = draw_chart("", [panel], since, since + length, 1.0)
    (begin, end), marks = time_axis(picture), ET.fromstring(picture).iter(f"{SVG}text")
    places = [float(one.get("x")) for one in marks if re.fullmatch(r"[0-9]+:[0-9:]+", one.text or "")]
    assert len(places) <= 9
    assert all(begin - 1 / length * (end - begin) - 1 <= place <= end + 1 for place in places)
    assert len(places) >= 2 or length < 5


def test_names_cannot_break_the_picture():
    odd = StoredSample(0.0, "u", "a\x00\x1b]</svg>", "x", 0, total=1.0)
    assert "</svg>" in texts(plot_samples([odd], TimeSpan(0.0, 1.0)))[0]
