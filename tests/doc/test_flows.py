"""The drawings of flows name modules that exist, and steps between participants."""

import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FLOWS = yaml.safe_load((ROOT / "doc/developer/flows.yaml").read_text())
PEERS = {"client", "database", "kernel", "libvirtd", "Placement"}


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow["title"])
def test_participants_are_modules_or_known_peers(flow):
    unknown = {
        name
        for name in flow["participants"]
        if name not in PEERS and not (ROOT / f"{name}.py").exists() and not (ROOT / name).is_dir()
    }
    assert unknown == set()


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow["title"])
def test_every_participant_is_in_a_step_and_the_drawing_has_all_steps(flow, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "doc/_ext"), *sys.path])
    import sequences

    picture = sequences.drawing(flow)
    for step in flow["steps"]:
        assert step.partition(": ")[2] in picture or step in picture
    assert {name for name in flow["participants"] if not any(name in step for step in flow["steps"])} == set()
