"""Tests of a trial of a configuration, which finds the errors for which an agent would refuse to start."""

import pytest

from compute_agent.agent.dry_run import try_configuration
from compute_agent.model.messages import ConfigError
from tests.compute_agent.builders import load_text

PLACEMENT = "[placement]\nauth_type = none\nendpoint = http://localhost:1\n"


def tried(folder, settings=""):
    try_configuration(load_text(folder, f"[DEFAULT]\nstate_path = {folder / 'state'}\n{PLACEMENT}{settings}"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("[interference:a]\nmode = act\n", r"\[interference:a\] signal"),
        ("[interference:a]\nsignal = run_delay\nvictims = NOBODY\n", "there is no class 'NOBODY'"),
        ("[cpu_class:a]\ngovernor = two words\n", "one word is needed"),
        ("[blockio_class:a]\nread_bytes = 0\n", "a rate must be at least 1"),
        ("[capacity]\ncollectors = nobody\n", "no installed package has a collector nobody"),
        ("[watermark:a]\nmetric = nothing\n", "nothing"),
        ("[policy]\nname = static-pools\n", "there is no pool"),
        ("[guest:web]\npriority = 1\n", "the name of the section has to be the uuid of a guest"),
    ],
)
def test_a_trial_refuses_what_an_agent_would_refuse(tmp_path, settings, words):
    tried(tmp_path)
    with pytest.raises(ConfigError, match=words):
        tried(tmp_path, settings)
