"""The benchmark of equal devices sends the requests, and makes the worlds, that it describes."""

import subprocess
import sys
from pathlib import Path

from benchmarks.clouds import model_of
from benchmarks.devices import CLOUDS, device_questions
from benchmarks.mixed import GPU

CHECKOUT = Path(__file__).parents[2]


def test_hosts_have_the_stated_devices() -> None:
    for cloud in CLOUDS.values():
        snapshot = model_of(cloud, 12)
        devices = [each for each in snapshot if GPU in each.inventories]
        assert len(devices) == 12 * cloud.devices
        assert bool(sum(each.used.get(GPU, 0) for each in devices)) == bool(cloud.used)
        parents = {each.parent_id for each in devices}
        assert len(parents) == 12 * (cloud.nodes or 1)


def test_no_two_unlike_hosts_are_of_one_structure() -> None:
    trees = model_of(CLOUDS["unlike-8"], 8).whole_trees().values()
    assert len({tree.kind.shape for tree in trees}) == 8


def test_the_program_measures_every_question() -> None:
    command = [sys.executable, "-m", "benchmarks.devices", "--hosts", "12", "--count", "1"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for question in device_questions(12):
        assert f"| {question.row_title} |" in done.stdout
    assert "| 6 of 8 (devices-8), limit none | 1 | 20,160 | 1 | 1 |" in done.stdout
    assert "| 8 of 16 (nodes-16), limit 100 | 1 | 100 | 1 | 9 |" in done.stdout
