"""Tests of the command line: output formats, exit statuses, and commands that work without the daemon."""

import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from compute_agent.cmd.main import WORDS, AgentCommandManager, commands_of
from compute_agent.host.reader import read_topology
from compute_agent.model import cpuset
from tests.compute_agent.cmd.agents import MAIN, run_here

COMMANDS = {name: command for word in WORDS for name, command in commands_of(word).items()}


@pytest.fixture
def cli(write_ini):
    """A function that runs a command and returns exit status, standard output and standard error."""

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
def test_commands_that_describe_the_host_need_no_daemon(cli, topology, command, form):
    status, out, _ = cli(*command.split(), "-f", form)
    assert status == 0
    assert FORMATS[form](out)


def test_topology_show_is_the_stable_document(cli, topology):
    assert json.loads(cli("topology", "show", "-f", "json")[1]) == topology.to_dict()


def test_topology_show_is_a_tree_for_people(cli, topology):
    out = cli("topology", "show")[1]
    assert out.splitlines()[0].startswith(f"{topology.model_name or topology.architecture} · ")
    assert re.search(r"dedicated  0  \(", out)
    assert "free" not in out  # no daemon reports guests


def test_columns_of_topology_show_are_a_table(cli, topology):
    assert (
        f"| online_cpus | {cpuset.format(topology.online)} "
        in cli("topology", "show", "-c", "online_cpus")[1]
    )


def test_config_check_says_what_each_cpu_is_for(cli, topology):
    found = json.loads(cli("config", "check", "-f", "json")[1])
    assert (found["dedicated_cpus"], found["shared_cpus"], found["emulator_cpus"]) == ("0", "1", "1")
    assert found["host_cpus"] == cpuset.format(topology.online - {0, 1})


def test_the_inventory_command_shows_the_derived_inventory(cli, topology):
    rows = json.loads(cli("inventory", "show", "--derived", "-f", "json")[1])
    pcpu = [row for row in rows if row["resource_class"] == "PCPU"]
    assert [(row["provider"], row["total"], row["allocation_ratio"]) for row in pcpu] == [
        ("testhost_NUMA_0", 1, 1.0)
    ]


@pytest.mark.parametrize(
    "command", ["host show", "topology show", "config check", "inventory show --derived"]
)
def test_commands_that_describe_the_host_write_nothing(cli, topology, tmp_path, command):
    assert cli(*command.split())[0] == 0
    assert not (tmp_path / "state").exists()


def test_config_check_shows_the_inventories_that_follow(cli, topology):
    found = json.loads(cli("config", "check", "-f", "json")[1])
    assert found["inventories"] == json.loads(cli("inventory", "show", "--derived", "-f", "json")[1])
    assert (found["warnings"], found["refusals"]) == ([], [])


def test_config_check_lists_every_warning(cli, topology, write_ini):
    ini = write_ini(DEFAULT="vcpu_pin_set = 0\nreserved_host_cpus = 1", compute="provider_tree = flat")
    status, out, _ = cli("config", "check", "-f", "json", ini=ini)
    assert status == 0
    assert [next(word for word in w.split() if "_" in word) for w in json.loads(out)["warnings"]] == [
        "reserved_host_cpus",
        "vcpu_pin_set",
    ]


def test_config_check_warns_of_nodes_with_the_same_cpus_and_counts_them_once(cli, configure, two_nodes):
    (two_nodes / "sys/devices/system/node/node1/cpulist").write_text("0-1\n")
    status, out, _ = cli(
        "config", "check", "-f", "json", ini=configure("cpu_dedicated_set = 0\ncpu_shared_set = 1")
    )
    found = json.loads(out)
    assert status == 0
    assert [warning.split(":")[0] for warning in found["warnings"]] == [
        "NUMA nodes 0 and 1 both have CPUs 0, as emulated nodes do (numa=fake)"
    ]
    cpus = [row for row in found["inventories"] if row["resource_class"] in ("PCPU", "VCPU")]
    assert [(row["provider"], row["resource_class"], row["total"]) for row in cpus] == [
        ("testhost_NUMA_0", "PCPU", 1),
        ("testhost_NUMA_1", "VCPU", 1),
    ]


def test_config_check_lists_every_refusal_in_a_line_of_its_own(cli, topology, write_ini):
    ini = write_ini(DEFAULT="cpu_allocation_ratio = -1", compute="cpu_shared_set = 0,4095")
    status, out, err = cli("config", "check", "-f", "json", ini=ini)
    assert status == 1
    refusals = json.loads(out)["refusals"]
    assert err.splitlines() == refusals
    assert refusals[0].startswith("[compute] cpu_shared_set = '0,4095': CPUs 4095 are absent")
    assert refusals[1] == "[DEFAULT] cpu_allocation_ratio = -1.0 is not a number above 0"


def test_the_topology_is_drawn_as_a_picture(cli, topology, tmp_path):
    status, picture, _ = cli("topology", "show", "-f", "svg")
    assert status == 0
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    file = tmp_path / "host.svg"
    status, out, _ = cli("topology", "show", "-f", "json", "--svg", file)
    assert (status, json.loads(out)) == (0, topology.to_dict())
    assert file.read_text() == picture


@pytest.mark.parametrize("command", ["status", "guest list", "guest show x", "guest stop x", "audit"])
def test_without_a_daemon_a_command_fails_and_says_so(cli, topology, command):
    status, out, err = cli(*command.split())
    assert (status, out) == (1, "")
    assert "does it run?" in err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["no", "such", "command"], 2), (["guest", "run"], 2), (["status", "-f", "nonsense"], 2)],
)
def test_wrong_usage_has_an_exit_status_of_its_own(cli, arguments, status):
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
    agent.start_reporting()
    guest = agent.ask("guest", "run", "--name", "g", "--", "sleep", "60")
    for command in ("status", "guest list", "guest show g", "inventory show"):
        for form, parse in FORMATS.items():
            done = agent.cli(*command.split(), "-f", form)
            assert done.returncode == 0, done.stderr
            assert parse(done.stdout)
    columns = ("uuid", "name", "driver", "pid", "vcpus", "kind", "cpus", "reason", "refused")
    assert agent.ask("guest", "list") == [{name: guest[name] for name in columns}]
    assert {row["differs"] for row in agent.ask("inventory", "show")} == {False}


def test_the_picture_has_the_guests_of_the_daemon(agent):
    agent.start_reporting()
    agent.ask("guest", "run", "--name", "database", "--", "sleep", "60")
    assert "database: 1" in agent.cli("topology", "show", "-f", "svg").stdout


def test_a_refused_start_prints_its_reason_once(agent, write_ini):
    done = agent.run_in_vain(write_ini("bad.ini", compute="cpu_dedicated_set = 0-1\ncpu_shared_set = 1"))
    assert done.returncode == 1
    assert done.stderr.count("both name CPU 1") == 1
    assert "ConfigError" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_refusals_of_the_daemon_are_printed(agent):
    agent.start()
    for command, words in (
        (["guest", "run", "--", "no-such-program"], "no-such-program"),
        (["guest", "run", "--uuid", "nonsense", "--", "true"], "uuid"),
        (["guest", "run", "--vcpus", "0", "--", "true"], "vcpus"),
        (["guest", "adopt", "--pid", "1"], "pid"),
        (["guest", "adopt", "--cgroup", "work"], f"group {Path.cwd()}/work cannot be a guest"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        ("status --help", {"keystoneauth1", "oslo_config", "sqlalchemy"}),
        ("guest list", {"compute_agent.agent.service", "compute_agent.monitoring", "sqlalchemy"}),
        ("audit --help", {"compute_agent.agent.service", "compute_agent.pipeline", "keystoneauth1"}),
    ],
)
def test_a_command_imports_what_it_needs_and_no_more(arguments, unneeded, tmp_path):
    ini = tmp_path / "agent.conf"
    ini.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\n")
    program = (
        "import sys; from compute_agent.cmd.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('', *sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--config-file", ini, *arguments.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = set(done.stdout.splitlines())
    assert "compute_agent.cmd.main" in imported
    assert unneeded & imported == set()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("guest list", "guest list"),
        ("gu lis", "guest list"),
        ("gu li", None),
        ("wat", None),
        ("stat", "status"),
    ],
)
def test_words_may_be_shortened_as_long_as_they_mean_one_command(words, command):
    if command is None:
        with pytest.raises(ValueError, match="Unknown command"):
            AgentCommandManager().find_command(words.split())
    else:
        assert AgentCommandManager().find_command(words.split())[0] is COMMANDS[command]


@pytest.mark.parametrize("word", WORDS)
def test_every_word_leads_to_commands(word):
    assert any(name.split()[0] == word for name in commands_of(word))


@pytest.mark.slow
def test_the_installed_entry_point_runs():
    done = subprocess.run([*MAIN, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert set(COMMANDS) <= {
        " ".join(line.split()[:n]) for line in done.stdout.splitlines() for n in (1, 2, 3)
    }


def test_an_error_without_a_text_is_named(cli, monkeypatch):
    def failing(self, parsed):
        raise NotImplementedError

    monkeypatch.setattr(COMMANDS["topology show"], "take_action", failing)
    status, _, stderr = cli("topology", "show")
    assert status == 1
    assert "topology show failed with NotImplementedError" in stderr


def test_config_show_lists_options_that_are_set_and_their_origin(write_ini):
    ini = write_ini()
    rows = json.loads(run_here(ini, "config", "show", "--origin", "-f", "json").stdout)
    assert {
        "section": "compute",
        "option": "cpu_dedicated_set",
        "value": "0",
        "origin": str(ini),
    } in rows
    assert all(row["origin"] == str(ini) for row in rows)
    every = json.loads(run_here(ini, "config", "show", "--all", "-f", "json").stdout)
    assert len(every) > len(rows)
    assert every[0].keys() == {"section", "option", "value"}


def test_a_line_without_a_command_is_wrong_usage_and_ends(write_ini):
    """A program under cron has no terminal to read from."""
    command = [*MAIN, "--config-file", write_ini()]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "a command is missing; --help lists all of them" in done.stderr


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (["false"], "exit status 1"),
        (["true"], "exit status 0"),
        (["sh", "-c", "kill -9 $$"], "signal 9 (SIGKILL)"),
    ],
)
def test_a_command_that_ends_at_once_shows_its_exit_status(agent, command, ending):
    agent.start()
    # A busy machine may need longer for it than the agent waits: the next guest has another chance.
    agent.wait_for(lambda: agent.ask("guest", "run", "--", *command).get("ended") == ending)
    agent.wait_for(
        lambda: any(
            (event["kind"], event["reason"]) == ("leave", ending) for event in agent.ask("event", "list")
        )
    )


def test_a_command_that_runs_has_not_ended(agent):
    agent.start()
    assert agent.ask("guest", "run", "--", "sleep", "100").get("ended") is None
