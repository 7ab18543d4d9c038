"""The page on containers: its options and commands, with the fakes of Podman."""

import configparser
import os
import re

import pytest

from compute_agent.cmd.main import main
from tests.compute_agent.agent.running import RunningAgent
from tests.doc.pages import SITE, blocks

PAGE = SITE / "host/containers.md"
TEXT = PAGE.read_text()


def labels_of(command):
    """The labels in a command of the page, which may have several lines."""
    found = re.search(rf"^ +{command}(.*\\\n)*.*", TEXT, re.MULTILINE)
    return dict(label.split("=") for label in re.findall(r"--label (\S+)", found[0]))


@pytest.fixture
def rig(two_cpus, write_ini, client, engine):
    """An agent with CPU 0 dedicated and CPU 1 shared, and otherwise the options of the page."""
    parser = configparser.RawConfigParser(strict=False)
    for block in blocks(PAGE):
        if block.language == "ini":
            parser.read_string(block.text)
    options = {name: dict(parser[name]) for name in parser.sections()}
    # The container of the page has a class that this example of the page does not allow.
    assert options["guests"].pop("label_settings") == "qos_class=LS, qos_class=BE, priority"
    assert options["guests"] == {"drivers": "libvirt, podman", "claim": "true"}
    options["guests"] |= {"drivers": "podman, process", "reconcile_interval": "0.3"}
    options["podman"]["socket"] = engine.path
    sections = {
        name: "\n".join(f"{key} = {text}" for key, text in lines.items()) for name, lines in options.items()
    }
    rig = RunningAgent(lambda: write_ini(**sections), client)
    yield rig
    rig.close()


def ask(rig, capsys, *words):
    """The output of a command line of the page."""
    assert f"compute-agent {' '.join(words)}" in TEXT.replace("\n", " ")
    capsys.readouterr()
    assert main(["--config-file", str(rig.ini), *words]) == 0
    return capsys.readouterr().out


def test_the_commands_of_the_page_work(rig, engine, capsys):
    labels = labels_of("podman run -d --name db")
    assert len(labels) == 4
    engine.start("db", labels)
    engine.start_pod("web", labels_of("podman pod create --name web"))
    rig.wait_for(lambda: {row["name"] for row in rig.ask("guest.list")} == {"db", "web"})
    listed = ask(rig, capsys, "guest", "list")
    assert labels["compute-agent.uuid"] in listed
    shown = ask(rig, capsys, "guest", "show", "db")
    assert "LSR" in shown
    # The host has no room for four dedicated CPUs.
    rig.wait_for(lambda: rig.agent.reports.report_now() and rig.ask("status")["unclaimed_guests"])
    assert labels["compute-agent.uuid"] in ask(rig, capsys, "status")
    rig.wait_for(lambda: "does not get its claim" in ask(rig, capsys, "event", "list"))
    rig.agent.stop()
    ask(rig, capsys, "release", "--pins")
    assert {frozenset(os.sched_getaffinity(pid)) for pid in engine.pids("db")} == {frozenset({0, 1})}
    assert main(["--config-file", str(rig.ini), "release", "--undo"]) == 0
    rig.start_again()
