"""Tests that an empty list explains why it is empty: nothing is configured, or nothing has happened so
far.
"""

import json

import pytest

from compute_agent.cmd.base import AgentLister
from tests.compute_agent.cmd.agents import run_here

CALM = "Nothing so far: [interference:cpu] signal = run_delay limits no guest now"
OFF = "Not configured: nothing is measured without [capacity] mode, steal or collectors."


@pytest.mark.parametrize(
    ("command", "section", "why"),
    [
        (
            "interference list",
            "",
            "Not configured: no guest is watched without section [interference:NAME]",
        ),
        ("interference list", "[interference:cpu]\nsignal = run_delay", CALM),
        ("capacity show", "", OFF),
        ("capacity show", "[capacity]\nmode = preview", "There is nothing to measure: "),
        ("capacity show", "[capacity]\nsteal = act", "There is nothing to measure: "),
        ("watermark list", "", "Not configured: nothing is watched without a section [watermark:NAME]"),
        ("guest list", "", "Nothing so far: this host has no guests"),
    ],
)
def test_tables_for_people_say_why_they_are_empty(tmp_path, monkeypatch, command, section, why):
    monkeypatch.setattr(AgentLister, "ask_daemon", lambda self, method, params=None: [])
    ini = tmp_path / "agent.ini"
    ini.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\n{section}\n")
    done = run_here(ini, *command.split(), "-f", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert done.stderr.startswith(why)
