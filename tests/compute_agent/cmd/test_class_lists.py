"""Tests of the commands that list classes and pools, with the settings and guests of each."""

import json

from compute_agent.cmd import classes, noise
from compute_agent.cmd.main import commands_of
from tests.compute_agent.cmd.agents import run_here

CLASSES = {
    "qos_class:gold": "rank = 30\nllc_range = 20-80\ncpu_class = fast",
    "cpu_class:fast": "governor = performance\ndisabled_c_states = C6",
    "blockio_class:bulk": "weight = 50\nread_bytes = 20M\ndevices = vda",
    "cpu_pool:web": "cpus = 0",
}


def listed(configure, *words):
    """The rows of a list, by the name in each row."""
    ini = configure("cpu_dedicated_set = 0\ncpu_shared_set = 1", **CLASSES)
    done = run_here(ini, *words, "-f", "json")
    assert done.returncode == 0, done.stderr
    assert "Guests are not shown: no agent answers" in done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_classes_of_guests_are_listed_by_rank(configure):
    found = listed(configure, "qos", "class", "list")
    assert list(found) == ["gold", "LSR", "LS", "BE"]
    memory = ["low = 0", "oom_score_adj = 100", "minimum = 0"]
    assert found["gold"]["sets"] == ["llc = 20-80", *memory, "cpu_class = fast"]
    assert found["BE"]["sets"][0] == "llc = 0-30"


def test_classes_of_cpus_and_block_io_are_listed(configure):
    fast = listed(configure, "cpu", "class", "list")["fast"]
    assert fast["sets"][:2] == ["governor = performance", "disabled_c_states = C6"]
    assert (fast["qos_classes"], fast["guests"]) == (["gold"], [])
    bulk = listed(configure, "blockio", "class", "list")["bulk"]
    assert bulk["sets"] == ["weight = 50", "read_bytes = 20971520", "devices = vda"]


def test_pools_are_listed_with_their_cpus(configure):
    assert listed(configure, "cpu", "pool", "list")["web"]["cpus"] == "0"


def test_a_word_has_its_own_commands():
    assert set(commands_of("cpu")) == {"cpu class list", "cpu pool list", "cpu noise"}
    lists = {words for word in ("qos", "blockio", "cpu") for words in commands_of(word)}
    assert lists == {*classes.COMMANDS, *noise.COMMANDS}
