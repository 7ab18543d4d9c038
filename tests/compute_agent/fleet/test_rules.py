"""Tests that each option of the agent, including new options, is either allowed or forbidden in revisions."""

import pytest

from compute_agent import conf as agent_conf
from compute_agent.fleet.revision import FORBIDDEN_OPTIONS, FORBIDDEN_SECTIONS, IN_DEFAULT, forbidden_options
from tests.compute_agent.builders import load_options

PATHLIKE = (
    "path",
    "_dir",
    "file",
    "command",
    "socket",
    "address",
    "port",
    "_location",
    "uri",
    "root",
    "mount",
)


def is_forbidden(section: str, option: str) -> bool:
    options = agent_conf.known_options(load_options())
    return bool(forbidden_options({section: {option: "x"}}, options, None))


def test_listed_sections_and_options_exist():
    known = {(section, option.dest) for section, some in agent_conf.list_opts() for option in some}
    assert {
        (f"{section}NAME" if section.endswith(":") else section, name) for section, name in FORBIDDEN_OPTIONS
    } <= known
    assert set(FORBIDDEN_SECTIONS) <= {section for section, _ in known}
    assert {("DEFAULT", name) for name in IN_DEFAULT - {"debug"}} <= known


def test_no_option_that_sounds_like_a_path_or_an_address_is_left_to_the_fleet():
    left = {
        f"[{section}] {option.dest}"
        for section, some in agent_conf.known_options(load_options())
        for option in some
        if any(word in option.dest for word in PATHLIKE) and not is_forbidden(section, option.dest)
    }
    assert left == {"[qos] evict_command_timeout", "[compute] report_positions"}


@pytest.mark.parametrize("section", ["PLACEMENT", "Fleet", "credentials"])
def test_names_of_sections_are_those_that_they_stand_for(section):
    found = forbidden_options({section: {"password": "x"}}, [], "Credentials")
    assert len(found) == 1
    assert f"[{section}] password" in found[0]
