"""The example of a cloud: a host accepts its file, and its guests have the settings on the page."""

import json
import re
import shlex
from pathlib import Path

import pytest

from compute_agent import conf as agent_conf
from compute_agent.classification.resolution import parse_policy, resolve_settings
from compute_agent.classification.rules import GuestFacts
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import setting_text
from compute_agent.throttling.settings import read_settings
from compute_agent.throttling.watermarks.metrics import load_registry
from tests.compute_agent.cmd.agents import run_here
from tests.compute_agent.power_trees import CPUS, xeon
from tests.doc.pages import ROOT, SITE, blocks, commands

FILE = ROOT / "etc/compute-agent/nova-cloud.conf"
PAGE = SITE / "howto/example-cloud.md"
EMPTY = {"none": "", "": ""}


def flavors() -> dict[str, dict[str, str]]:
    """The extra specs of each flavor that the page makes."""
    found = {}
    lines = [line for block in blocks(PAGE) if block.language == "bash" for line in commands(block.text)]
    for words in map(shlex.split, lines):
        if words[:3] == ["openstack", "flavor", "create"]:
            pairs = [words[at + 1] for at, word in enumerate(words) if word == "--property"]
            found[words[3]] = dict(pair.split("=", 1) for pair in pairs)
    return found


def guests() -> list[list[str]]:
    """The rows of the page's table of guests."""
    section = PAGE.read_text().partition("## What each guest has")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[EMPTY.get(cell.strip(), cell.strip()) for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("guest", guests(), ids=lambda guest: " ".join(guest[:3]).strip())
def test_a_guest_has_the_settings_of_the_table(guest: list[str]) -> None:
    flavor, project, image, rule, qos_class, priority, blockio, preserve = guest
    policy = parse_policy(agent_conf.load([], [str(FILE)]), follows=True)
    identity = GuestIdentity(
        flavor=flavor,
        extra_specs=flavors()[flavor],
        project_name=project,
        image_properties=dict([image.split("=")] if image else []),
    )
    found = resolve_settings(policy, GuestFacts("libvirt", identity=identity))
    names = ("qos_class", "priority", "blockio_class", "preserve")
    assert [setting_text(getattr(found.settings, name)) for name in names] == [
        qos_class,
        priority,
        blockio,
        preserve,
    ]
    assert (found.rule, found.problems) == (rule, ())


def test_watermarks_act_on_best_effort_guests_alone() -> None:
    settings = read_settings(agent_conf.load([], [str(FILE)]), load_registry())
    classes = settings.classes
    assert {name for name in classes.classes if not classes.is_protected(name, dedicated=False)} == {"BE"}
    assert {one.name for one in settings.rules.watermarks} == {"cpu", "memory"}


def test_a_host_takes_the_file(tmp_path: Path) -> None:
    """The host has two packages with 8 cores. The only warning is that Keystone does not answer."""
    host = tmp_path / "host"
    xeon(host, 32)
    describe_host(host)
    text = re.sub(r"auth_url = .*", "auth_url = http://127.0.0.1:1/v3\nconnect_retries = 0", FILE.read_text())
    file = tmp_path / "agent.conf"
    file.write_text(f"{text}\n[host]\nroot = {host}\n")
    file.write_text(file.read_text().replace("[DEFAULT]", f"[DEFAULT]\nstate_path = {tmp_path / 'state'}"))
    file.chmod(0o600)
    done = run_here(file, "config", "check", "-f", "json")
    found = json.loads(done.stdout)
    assert found["refusals"] == []
    assert found["policy"] == "follow"
    assert found["dedicated_cpus"] == "4-7,12-15,20-23,28-31"
    assert found["host_cpus"] == "0,8,16,24"
    assert [each for each in found["warnings"] if "Placement cannot be asked" not in each] == []


def describe_host(host: Path) -> None:
    """CPUs n and n+16 are a core; each package is a NUMA node. The disk divides by weight."""
    for cpu in range(32):
        core = cpu % 16
        node = core // 8
        files = {
            "core_cpus_list": f"{core},{core + 16}",
            "package_cpus_list": f"{8 * node}-{8 * node + 7},{8 * node + 16}-{8 * node + 23}",
            "physical_package_id": f"{node}",
            "core_id": f"{core}",
        }
        for name, text in files.items():
            (host / CPUS / f"cpu{cpu}/topology/{name}").write_text(f"{text}\n")
    (host / "sys/block/vda/queue").mkdir(parents=True)
    (host / "sys/block/vda/dev").write_text("254:0\n")
    (host / "sys/block/vda/queue/scheduler").write_text("none mq-deadline [bfq]\n")
    (host / "proc/meminfo").write_text("MemTotal: 134217728 kB\n")
    for node in (0, 1):
        folder = host / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{8 * node}-{8 * node + 7},{8 * node + 16}-{8 * node + 23}\n")
        (folder / "meminfo").write_text(f"Node {node} MemTotal: 67108864 kB\n")
        (folder / "distance").write_text("10 20\n" if node == 0 else "20 10\n")
