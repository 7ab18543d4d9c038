"""The command line: formats, exit statuses, and what works without the daemon."""

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from compute_agent.cmd.main import COMMANDS
from compute_agent.host import cpuset
from compute_agent.host.reader import read_topology
from tests.compute_agent.cmd.agents import MAIN, run_here


@pytest.fixture
def cli(write_ini):
    """Runs a command: (exit status, standard output, standard error)."""

    def run(*arguments, ini=None):
        done = run_here(ini or write_ini(), *arguments)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def topology():
    topology = read_topology(Path("/"))
    if not {0, 1} <= topology.online:
        pytest.skip("needs CPUs 0 and 1")
    return topology


FORMATS = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "csv": lambda text: list(csv.DictReader(io.StringIO(text))),
    "table": str,
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "command", ["host show", "topology show", "config check", "inventory show --derived"]
)
def test_what_describes_the_host_needs_no_daemon(cli, topology, command, form):
    status, out, _ = cli(*command.split(), "-f", form)
    assert status == 0
    assert FORMATS[form](out)


def test_topology_show_is_the_stable_document(cli, topology):
    assert json.loads(cli("topology", "show", "-f", "json")[1]) == topology.to_dict()


def test_config_check_says_what_each_cpu_is_for(cli, topology):
    found = json.loads(cli("config", "check", "-f", "json")[1])
    assert (found["dedicated_cpus"], found["shared_cpus"], found["emulator_cpus"]) == ("0", "1", "1")
    assert found["host_cpus"] == cpuset.format(topology.online - {0, 1})


def test_derived_inventory(cli, topology):
    rows = json.loads(cli("inventory", "show", "--derived", "-f", "json")[1])
    pcpu = [row for row in rows if row["resource_class"] == "PCPU"]
    assert [(row["provider"], row["total"], row["allocation_ratio"]) for row in pcpu] == [
        ("testhost_NUMA_0", 1, 1.0)
    ]


@pytest.mark.parametrize("command", ["status", "guest list", "guest show x", "guest stop x", "audit"])
def test_without_a_daemon_a_command_fails_and_says_so(cli, topology, command):
    status, out, err = cli(*command.split())
    assert (status, out) == (1, "")
    assert "is it running?" in err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["no", "such", "command"], 2), (["guest", "run"], 2), (["status", "-f", "nonsense"], 2)],
)
def test_wrong_usage(cli, arguments, status):
    assert cli(*arguments)[0] == status


@pytest.mark.parametrize(
    ("content", "words"),
    [("[policy]\nname = nonsense\n", "nonsense"), ("[DEFAULT\n", "bad.ini"), (None, "bad.ini")],
)
def test_a_configuration_that_cannot_be_read_is_named(cli, tmp_path, content, words):
    bad = tmp_path / "bad.ini"
    if content is not None:
        bad.write_text(content)
    status, _, err = cli("config", "check", ini=bad)
    assert status == 1
    assert words in err


def test_every_command_of_the_daemon_prints_every_format(agent):
    agent.start()
    agent.wait_for(lambda: agent.status()["placement"] == "up")
    guest = agent.ask("guest", "run", "--name", "g", "--", "sleep", "60")
    for command in ("status", "guest list", "guest show g", "inventory show", "audit"):
        for form, parse in FORMATS.items():
            done = agent.cli(*command.split(), "-f", form)
            assert done.returncode == 0, done.stderr
            assert parse(done.stdout)
    assert agent.ask("guest", "list") == [
        {name: guest[name] for name in ("uuid", "name", "pid", "vcpus", "kind", "cpus")}
    ]
    assert agent.ask("audit") == [
        {"consumer": guest["uuid"], "finding": "guest without allocation", "resources": ""}
    ]
    assert {row["differs"] for row in agent.ask("inventory", "show")} == {False}


def test_what_the_daemon_refuses_is_said(agent):
    agent.start()
    for command, words in (
        (["guest", "run", "--", "no-such-program"], "no-such-program"),
        (["guest", "run", "--uuid", "nonsense", "--", "true"], "uuid"),
        (["guest", "run", "--vcpus", "0", "--", "true"], "vcpus"),
        (["guest", "adopt", "--pid", "1"], "pid"),
        (["guest", "show", "nobody"], "there is no guest nobody"),
        (["guest", "stop", "nobody"], "there is no guest nobody"),
    ):
        done = agent.cli(*command)
        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text(cli, name):
    status, out, _ = cli(*name.split(), "--help")
    assert status == 0
    assert " ".join(COMMANDS[name].__doc__.split()[:4]) in " ".join(out.split())


def test_the_installed_entry_point():
    done = subprocess.run([*MAIN, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert set(COMMANDS) <= {" ".join(line.split()[:n]) for line in done.stdout.splitlines() for n in (1, 2)}
