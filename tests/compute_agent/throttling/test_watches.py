"""Tests of sections [interference:NAME]: their meaning, and refused sections."""

import pytest

from compute_agent.classes.guest_classes import parse_classes
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.settings import parse_watches
from tests.compute_agent.builders import load_text


def watches(folder, text):
    conf = load_text(folder, text)
    return parse_watches(conf, parse_classes(conf))


def test_a_section_with_a_signal_alone_is_in_preview(tmp_path):
    (found,) = watches(tmp_path, "[interference:cpu]\nsignal = run_delay\n")
    assert (found.name, found.signal.name, found.signal.lever.name) == ("cpu", "run_delay", "cpu_quota")
    assert (found.preview, found.victims, found.consenting, found.escalate) == (True, set(), set(), None)


def test_all_options_of_a_watch_are_read(tmp_path):
    (found,) = watches(
        tmp_path,
        "[interference:io]\nsignal = io_pressure\nmode = act\nvictims = LS, LSR\nconsenting = BE\n"
        "escalate_after = 2\nescalate_command = /bin/true --now\n",
    )
    assert (found.preview, found.victims, found.consenting) == (False, {"LS", "LSR"}, {"BE"})
    assert found.escalate_after == 2
    found.escalate("guest")  # of an end with 0 nothing is told


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("mode = act", r"\[interference:x\] signal: the option is missing; choose one of run_delay"),
        ("signal = run_delay\nvictims = XX", r"\[interference:x\] victims: there is no class 'XX'"),
        ("signal = run_delay\nconsenting = XX", r"\[interference:x\] consenting: there is no class 'XX'"),
        ("signal = run_delay\nconsenting = LS", r"consenting: LS is above \[qos\] highest_class"),
        ("signal = run_delay\nescalate_command = 'x", r"\[interference:x\] escalate_command: "),
    ],
)
def test_contradictions_are_refused_with_section_and_option(tmp_path, lines, said):
    with pytest.raises(ConfigError, match=said):
        watches(tmp_path, f"[interference:x]\n{lines}\n")
