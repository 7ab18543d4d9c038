"""Tests that the sample files in ``etc/placement`` equal the output of oslo's generators."""

import configparser
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ETC = ROOT / "etc" / "placement"
LIBRARIES = ["keystonemiddleware", "oslo.config", "oslo.log", "oslo.middleware", "oslo.policy"]


@pytest.fixture
def environ(tmp_path):
    """An environment in which the entry points of setup.cfg are known, as after an installation."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    info = tmp_path / "placement_compute-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: placement-compute\nVersion: 0\n")
    with (info / "entry_points.txt").open("w") as file:
        for group, names in setup["options.entry_points"].items():
            file.write(f"[{group}]{names}\n")
    # Before an installed distribution of this name, which Python then does not look at.
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def generate(environ, module, function, generator_conf, output):
    arguments = ["--config-file", str(ETC / generator_conf), "--output-file", str(output)]
    program = f"from {module} import {function}; {function}({arguments!r})"
    subprocess.run([sys.executable, "-c", program], env=environ, cwd=output.parent, check=True)
    return output.read_text()


def _not_as_tested():
    constraints = (ROOT / "etc" / "constraints.txt").read_text().splitlines()
    return [
        library
        for library in LIBRARIES
        if f"{library}=={importlib.metadata.version(library)}" not in constraints
    ]


@pytest.mark.skipif(
    bool(_not_as_tested()), reason="libraries, whose options are in it, are not those of etc/constraints.txt"
)
def test_the_sample_configuration_is_current(environ, tmp_path):
    made = generate(environ, "oslo_config.generator", "main", "config-generator.conf", tmp_path / "made")
    assert (ETC / "placement.conf.sample").read_text() == made


def test_the_sample_policy_is_current(environ, tmp_path):
    made = generate(
        environ, "oslo_policy.generator", "generate_sample", "policy-generator.conf", tmp_path / "made"
    )
    assert (ETC / "policy.yaml.sample").read_text() == made
