"""Tests of agents with containers as guests, from labels to pinned processes, and of the page about them."""

import configparser
import os
import re

import pytest

from compute_agent.agent.release import ReleaseOptions, open_release
from compute_agent.cmd.main import main
from compute_agent.drivers.foreign import editor
from tests.compute_agent.agent.running import RunningAgent
from tests.compute_agent.drivers.containers.fake_engine import GUEST
from tests.doc.pages import SITE, blocks

UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
DB = "db"


@pytest.fixture
def rig(two_cpus, write_ini, client, engine):
    """An agent with CPU 0 dedicated and CPU 1 shared, of containers and of processes."""

    def write():
        return write_ini(
            guests="drivers = podman, process\nreconcile_interval = 0.3\nstop_timeout = 1",
            podman=f"socket = {engine.path}",
        )

    rig = RunningAgent(write, client)
    yield rig
    rig.close()


def cpus_of(engine):
    return {frozenset(os.sched_getaffinity(process.pid)) for process in engine.named(DB).processes}


def test_a_container_with_an_allocation_is_pinned_and_repaired(rig, engine, monkeypatch):
    # The one reconciliation of the test finds a change that follows a reading within milliseconds.
    monkeypatch.setattr(editor, "READING_SECONDS", -1.0)
    rig.claim(UUID, PCPU=1)
    labels = {**GUEST, "compute-agent.uuid": UUID, "compute-agent.class": "LS"}
    engine.start(DB, labels, processes=2)
    engine.start("other", {})
    rig.wait_for(lambda: cpus_of(engine) == {frozenset({0})})
    (row,) = rig.ask("guest.list")
    assert (row["uuid"], row["name"], row["driver"], row["cpus"]) == (UUID, DB, "podman", "0")
    assert rig.ask("guest.show", guest=UUID)["setting_sources"]["qos_class"] == "label"
    assert engine.group_file("other", "cpuset.cpus") == ""
    # Another program changes the CPUs while the engine is away.
    engine.go_away()
    rig.wait_for(lambda: "Podman" in rig.ask("status")["drivers_away"].get("podman", ""))
    up = rig.agent.metrics.registry.get_sample_value
    assert up("compute_agent_guest_driver_up", {"driver": "podman"}) == 0
    assert up("compute_agent_guest_driver_up", {"driver": "process"}) == 1
    (engine.folder_of(engine.named(DB)) / "cpuset.cpus").write_text("1\n")
    rig.agent.reconcile()
    rig.wait_for(lambda: engine.group_file(DB, "cpuset.cpus") == "0")
    engine.listen()
    rig.wait_for(lambda: not rig.ask("status")["drivers_away"])
    engine.stop(DB)
    rig.wait_for(lambda: rig.ask("guest.list") == [])


def test_a_restart_of_the_agent_keeps_the_cpus(rig, engine):
    rig.claim(UUID, PCPU=1)
    engine.start(DB, {**GUEST, "compute-agent.uuid": UUID})
    rig.wait_for(lambda: cpus_of(engine) == {frozenset({0})})
    rig.restart()
    assert cpus_of(engine) == {frozenset({0})}
    rig.wait_for(lambda: rig.ask("guest.list"))


def test_a_release_gives_containers_their_own_cpus_back(rig, engine):
    rig.claim(UUID, PCPU=1)
    engine.start(DB, {**GUEST, "compute-agent.uuid": UUID})
    # Processes of the fake engine begin with the CPUs of the test.
    own = {frozenset(os.sched_getaffinity(0))}
    rig.wait_for(lambda: cpus_of(engine) == {frozenset({0})})
    rig.agent.stop()
    with open_release(rig.load_conf(), ReleaseOptions(pins=True), 10.0) as release:
        rows = [row.outcome for row in release.carry_out() if row.kind == "pins"]
    assert rows == ["given back"]
    assert cpus_of(engine) == own
    records = (rig.ini.parent / "state" / "podman").glob("*")
    assert [it for it in records if "AllowedCPUs" in it.read_text()] == []
    rig.start_again()
    rig.wait_for(lambda: cpus_of(engine) == {frozenset({0})})


def test_a_label_that_cannot_be_used_is_a_lost_guest_of_the_status(rig, engine):
    engine.start(DB, {**GUEST, "compute-agent.vcpus": "many"})
    rig.wait_for(lambda: rig.ask("status")["lost_guests"])
    (lost,) = rig.ask("status")["lost_guests"]
    assert "compute-agent.vcpus=many is not a whole number" in str(lost)


PAGE = SITE / "host/containers.md"
TEXT = PAGE.read_text()


def labels_of(command):
    """The labels in a command of the page, which may have several lines."""
    found = re.search(rf"^ +{command}(.*\\\n)*.*", TEXT, re.MULTILINE)
    return dict(label.split("=") for label in re.findall(r"--label (\S+)", found[0]))


@pytest.fixture
def page_rig(two_cpus, write_ini, client, engine):
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
    page_rig = RunningAgent(lambda: write_ini(**sections), client)
    yield page_rig
    page_rig.close()


def ask(page_rig, capsys, *words):
    """The output of a command line of the page."""
    assert f"compute-agent {' '.join(words)}" in TEXT.replace("\n", " ")
    capsys.readouterr()
    assert main(["--config-file", str(page_rig.ini), *words]) == 0
    return capsys.readouterr().out


def test_the_commands_of_the_page_work(page_rig, engine, capsys):
    labels = labels_of("podman run -d --name db")
    assert len(labels) == 4
    engine.start("db", labels)
    engine.start_pod("web", labels_of("podman pod create --name web"))
    page_rig.wait_for(lambda: {row["name"] for row in page_rig.ask("guest.list")} == {"db", "web"})
    listed = ask(page_rig, capsys, "guest", "list")
    assert labels["compute-agent.uuid"] in listed
    shown = ask(page_rig, capsys, "guest", "show", "db")
    assert "LSR" in shown
    # The host has no room for four dedicated CPUs.
    page_rig.wait_for(
        lambda: page_rig.agent.reports.report_now() and page_rig.ask("status")["unclaimed_guests"]
    )
    assert labels["compute-agent.uuid"] in ask(page_rig, capsys, "status")
    page_rig.wait_for(lambda: "does not get its claim" in ask(page_rig, capsys, "event", "list"))
    page_rig.agent.stop()
    ask(page_rig, capsys, "release", "--pins")
    assert {frozenset(os.sched_getaffinity(pid)) for pid in engine.pids("db")} == {frozenset({0, 1})}
    assert main(["--config-file", str(page_rig.ini), "release", "--undo"]) == 0
    page_rig.start_again()
