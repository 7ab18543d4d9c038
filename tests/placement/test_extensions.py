"""Tests that the core works without extensions, and that each extension is registered."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from placement import extensions

ROOT = Path(__file__).parents[2]
SEAMS = (
    *("applications", "blueprints", "commands", "options"),
    *("request_forms", "rules", "tables", "takeovers", "trait_attributes"),
)


def test_without_extras_the_core_is_the_placement_api_with_claims_reservations_and_explanations(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.placement.core_alone", f"sqlite:///{tmp_path}/placement.sqlite"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    commands, tables = found.pop("commands"), found.pop("tables")
    assert "resource_providers" in tables
    assert not [name for name in tables if "console" in name]
    assert "heal" in commands
    assert "import" not in commands
    assert {name: status for name, (status, _) in found.items()} == {
        "provider": 200,
        "inventories": 200,
        "candidates": 200,
        "explanation": 200,
        "claim": 201,
        "reservation": 201,
        "allocations": 200,
        "flavor": 400,
        "no query": 400,
        "capacity": 404,
        "console": 404,
    }
    assert "unknown name 'flavor'" in found["flavor"][1]
    assert found["no query"][1] == "A 'query' is needed."


@pytest.mark.parametrize("seam", SEAMS)
def test_the_distribution_registers_extras_at_each_seam(seam):
    assert extensions.registered_objects(seam)


def test_the_table_of_seams_names_each():
    assert [line.split("``")[1] for line in extensions.__doc__.splitlines() if line.startswith("- ``")] == [
        *("options", "rules", "blueprints", "request_forms"),
        *("applications", "commands", "takeovers", "tables", "trait_attributes"),
    ]
