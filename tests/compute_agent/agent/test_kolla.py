"""The page on kolla: its configuration, with containers that have the names of kolla's services."""

import configparser
import os

import pytest

from compute_agent.cmd.main import main
from tests.compute_agent.agent.running import RunningAgent
from tests.doc.pages import SITE, blocks

PINNED = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
SERVICES = ("nova_api", "nova_compute", "neutron_server", "keystone_fernet", "mariadb", "placement_api")
OTHERS = ("nova_libvirt", "ovsdpdk_vswitchd", "kolla_toolbox")
MEM_LIMIT = str(4 << 30)
CLASS_LIMIT = str(8 << 30)
UNLIMITED = ("nova_compute", "placement_api")
"""The services without a limit of kolla."""


@pytest.fixture
def page_options():
    """The options of the page by section."""
    (block,) = (block for block in blocks(SITE / "host/kolla.md") if block.language == "ini")
    parser = configparser.RawConfigParser()
    parser.read_string(block.text)
    return {name: dict(parser[name]) for name in parser.sections()}


@pytest.fixture(params=["docker", "podman"])
def rig(request, two_cpus, write_ini, client, engine, page_options):
    """An agent with CPU 0 dedicated and CPU 1 shared, and otherwise the options of the page."""
    options = page_options
    assert options["guests"]["drivers"] == "libvirt, docker"
    options["guests"] |= {"drivers": f"{request.param}, process", "reconcile_interval": "0.3"}
    options[request.param] = options.pop("docker") | {"socket": engine.path}
    options["guest_rule:control"]["match_driver"] = request.param
    del options["compute"]
    sections = {
        name: "\n".join(f"{key} = {text}" for key, text in lines.items()) for name, lines in options.items()
    }
    rig = RunningAgent(lambda: write_ini(**sections), client)
    yield rig
    rig.close()


def test_services_of_kolla_are_on_shared_cpus_with_their_class(rig, engine, capsys):
    for name in (*SERVICES, *OTHERS):
        engine.start(name, {}, processes=2)
        limit = "max" if name in UNLIMITED else MEM_LIMIT
        (engine.folder_of(engine.named(name)) / "memory.max").write_text(f"{limit}\n")
    rig.wait_for(lambda: {row["name"] for row in rig.ask("guest.list")} == {*SERVICES})
    rig.claim(PINNED, PCPU=1)
    guest = rig.ask("guest.run", uuid=PINNED, command=["sleep", "600"])
    assert os.sched_getaffinity(guest["pid"]) == {0}
    for name in SERVICES:
        rig.wait_for(lambda name=name: engine.group_file(name, "cpu.weight") == "200")
        shown = rig.ask("guest.show", guest=name)
        assert (shown["qos_class"], shown["setting_sources"]["qos_class"]) == ("control", "rule control")
        assert {frozenset(os.sched_getaffinity(pid)) for pid in engine.pids(name)} == {frozenset({1})}
        limit = CLASS_LIMIT if name in UNLIMITED else MEM_LIMIT
        rig.wait_for(lambda name=name, limit=limit: engine.group_file(name, "memory.max") == limit)
    for name in OTHERS:
        assert engine.group_file(name, "cpuset.cpus") == ""
    # kolla makes a container again.
    uuid = rig.ask("guest.show", guest="nova_api")["uuid"]
    engine.stop("nova_api")
    engine.containers.pop(engine.named("nova_api").key)
    engine.start("nova_api", {})
    rig.wait_for(lambda: os.sched_getaffinity(engine.pids("nova_api")[0]) == {1})
    rig.wait_for(lambda: rig.ask("guest.show", guest="nova_api")["uuid"] == uuid)
    # The commands of the page
    capsys.readouterr()
    assert main(["--config-file", str(rig.ini), "guest", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in SERVICES)
    rig.agent.stop()
    assert main(["--config-file", str(rig.ini), "release", "--pins"]) == 0
    for name in SERVICES:
        assert {frozenset(os.sched_getaffinity(pid)) for pid in engine.pids(name)} == {frozenset({0, 1})}
    assert engine.group_file("mariadb", "memory.max") == MEM_LIMIT
    assert engine.group_file("placement_api", "memory.max") == "max"
    assert main(["--config-file", str(rig.ini), "release", "--undo"]) == 0
    rig.start_again()
