"""Clouds of unlike hosts are reproducible, and have the stated load and variety."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.clouds import model_of
from benchmarks.mixed import CLOUDS, MixedCloud
from benchmarks.mixed_queries import FAMILIES, query_paths
from benchmarks.worst_questions import MAX_BYTES, WORLDS, find_worst

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
def test_a_host_does_not_depend_on_the_other_hosts(cloud: MixedCloud) -> None:
    assert list(cloud.hosts(9))[7] == cloud.make_host(7)
    assert cloud.make_host(7) != cloud.make_host(8)


@pytest.mark.parametrize(("name", "full"), [("mixed", 0.90), ("mixed-full", 0.97), ("unlike-full", 0.97)])
def test_clouds_have_the_stated_load(name: str, full: float) -> None:
    having = [each for each in model_of(CLOUDS[name], 120) if "VCPU" in each.inventories]
    used = sum(each.used.get("VCPU", 0) for each in having)
    assert used / sum(each.inventories["VCPU"].capacity for each in having) == pytest.approx(full, abs=0.02)


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
def test_no_provider_holds_more_than_its_capacity(cloud: MixedCloud) -> None:
    for each in model_of(cloud, 60):
        for name, amount in each.used.items():
            assert 0 < amount <= each.inventories[name].capacity


def test_unlike_hosts_have_different_structures() -> None:
    snapshot = model_of(CLOUDS["unlike"], 60)
    hosts = [tree for tree in snapshot.whole_trees().values() if "VCPU" in tree.kind.shape.classes]
    assert len({tree.kind.shape for tree in hosts}) == len(hosts) == 60


@pytest.mark.parametrize("name", FAMILIES)
def test_all_questions_differ(name: str) -> None:
    questions = list(islice(query_paths(name, CLOUDS["mixed"], 100), 20))
    assert len(set(questions)) == 20
    assert questions == list(islice(query_paths(name, CLOUDS["mixed"], 100), 20))


def test_the_program_measures_every_question() -> None:
    command = [sys.executable, "-m", "benchmarks.clouds", "--hosts", "24", "--count", "1", "--limits", "10"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in FAMILIES:
        assert done.stdout.count(f"| {name} |") == len(CLOUDS)


def test_a_version_beside_itself_gives_equal_answers() -> None:
    command = [sys.executable, "-m", "benchmarks.clouds", "--hosts", "24", "--count", "1", "--limits", "10"]
    beside = ["--beside", str(CHECKOUT), "--clouds", "unlike", "--seeds", "random", "--versions", "1.10,1.39"]
    done = subprocess.run([*command, *beside], cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| equal |") == 2 * len(FAMILIES)


@pytest.mark.parametrize("name", WORLDS)
def test_the_worst_question_of_a_few_ends_with_candidates_or_says_why_not(name: str) -> None:
    found = find_worst(name, count=4, seed=2, seconds=0.05, max_size=1 << 20)
    assert len(found.question.query_string()) <= MAX_BYTES
    assert found.answered.size < 8 << 20
    assert "candidates" in found.answered.outcome or "resources" in found.answered.outcome
    assert found.table_row().startswith(f"| {name} | 2 |")
