"""Tests of the screen of ``compute-agent top``: it fits the terminal, and the busiest guests come first."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drawing.top import ORDERS, AgentSnapshot, ShownUse, screen_lines

STATUS = {
    "provider": "host1",
    "placement": "up",
    "cache_control": "off: not mounted",
    "new_guests": "welcome",
    "lost_guests": [],
    "refused_guests": ["b"],
}


def guest_document(name: str, **changes: Any) -> dict[str, Any]:
    document = {
        "uuid": name,
        "name": name,
        "qos_class": "LS",
        "cpus": "2-5",
        "numa_nodes": "0",
        "limits": {},
        "reason": "",
        "refused": [],
    }
    return document | changes


def watermark(action: str, amount: float | None, usage: float | None, **changes: Any) -> dict[str, Any]:
    row = {"section": "busy", "metric": "cpu_usage", "domain": "", "unit": "percent", "in_force": []}
    return row | {"action": action, "amount": amount, "usage": usage} | changes


def test_a_host() -> None:
    seen = AgentSnapshot(
        "12:00:00",
        STATUS,
        [
            guest_document("a"),
            guest_document("b", limits={"cpu": 1.5}, reason="no place"),
            guest_document("c\x1b[2J" + "c" * 40, cpus="0,2,4,6,8,10,12,14,16,18,20"),
        ],
        [
            watermark("throttle_down", 90.0, 45.0, in_force=["b has 1.5 cores"]),
            watermark("evict", 95.0, 45.0),
        ],
        [{"guests": ["a"], "ways": {"0": 4, "1": 4}}, {"guests": ["b"], "ways": {"0": 4, "1": 2}}],
        {"b": ShownUse(3.5, 3 << 20, 2.5e9), "a": ShownUse(0.25)},
    )
    assert screen_lines(seen, "cpu", 130, 20) == [
        "host1 at 12:00:00 | Placement up | cache control off | 3 guests | new guests: welcome",
        "1 refused: b",
        "",
        "busy: cpu_usage                  [#############.............||..] 45 %"
        " (throttle_down 90 %, evict 95 %)",
        "                                 b has 1.5 cores",
        "",
        "GUEST                    CLASS CPUS               NODES   CORES     CACHE   MEMORY/s     WAYS  ",
        "b                        LS    2-5                0        3.50     3 MiB    2500 MB      4/2"
        "  cpu 1.5; no place",
        "a                        LS    2-5                0        0.25                             4",
        "c\ufffd[2Jcccccccccccccccccc~ LS    0,2,4,6,8,10,12,1~ 0",
    ]
    assert [line[0] for line in screen_lines(seen, "name", 80, 20)[-3:]] == ["a", "b", "c"]


def test_a_host_without_an_agent_has_a_reason() -> None:
    assert screen_lines(AgentSnapshot("12:00:00", trouble="no agent answers"), "cpu", 80, 20)[:2] == [
        "? at 12:00:00 | Placement ? | cache control ? | 0 guests",
        "no agent answers",
    ]


def test_guests_that_do_not_fit_are_counted() -> None:
    lines = screen_lines(
        AgentSnapshot("12:00:00", STATUS, [guest_document(letter) for letter in string.ascii_lowercase]),
        "name",
        80,
        12,
    )
    assert len(lines) == 12
    shown = [line for line in lines if " LS " in line]
    assert lines[-1] == f"... and {26 - len(shown)} more"


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 50),
    order=st.sampled_from(sorted(ORDERS)),
    guests=st.lists(st.text(), max_size=30),
    amounts=st.lists(st.none() | st.floats(0, 1e12), max_size=5),
    usage=st.none() | st.floats(0, 1e12),
)
def test_everything_is_within_the_terminal(
    width: int, height: int, order: str, guests: list[str], amounts: list[float | None], usage: float | None
) -> None:
    seen = AgentSnapshot(
        "12:00:00",
        STATUS,
        [guest_document(name) for name in guests],
        [watermark(f"action{n}", amount, usage, unit="bytes") for n, amount in enumerate(amounts)],
    )
    lines = screen_lines(seen, order, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width and line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("unit", "shown"),
    [
        ("bytes", "3 KiB"),
        ("bytes/s", "0 MB/s"),
        ("percent", "3072 %"),
        ("cores", "3072 cores"),
        ("", "3072"),
    ],
)
def test_amounts_have_their_units(unit: str, shown: str) -> None:
    seen = AgentSnapshot("12:00:00", STATUS, [], [watermark("evict", None, 3072.0, unit=unit)])
    assert f"] {shown} ()" in screen_lines(seen, "cpu", 200, 20)[3]


def test_conditions_are_true_or_false() -> None:
    rows = [
        watermark(action, amount, 1.0, unit="condition")
        for action, amount in (("throttle_down", 0.5), ("throttle_up", 0.25))
    ]
    seen = AgentSnapshot("12:00:00", STATUS, [], rows)
    assert screen_lines(seen, "cpu", 200, 20)[3].endswith("] true (throttle_down true, throttle_up false)")
