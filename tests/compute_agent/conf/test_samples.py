"""Tests of the files in etc/compute-agent: the sample of the ini file, and the systemd unit."""

import configparser
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ETC = ROOT / "etc" / "compute-agent"
LIBRARIES = ["keystoneauth1", "oslo.config", "oslo.log"]


def _not_as_tested():
    constraints = (ROOT / "etc" / "constraints.txt").read_text().splitlines()
    versions = {library: importlib.metadata.version(library) for library in LIBRARIES}
    return [name for name, version in versions.items() if f"{name}=={version}" not in constraints]


@pytest.mark.skipif(
    bool(_not_as_tested()), reason="libraries, whose options are in it, are not those of etc/constraints.txt"
)
def test_the_sample_configuration_is_current(tmp_path):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    info = tmp_path / "placement_compute-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: placement-compute\nVersion: 0\n")
    options = setup["options.entry_points"]["oslo.config.opts"]
    (info / "entry_points.txt").write_text(f"[oslo.config.opts]{options}\n")
    made = tmp_path / "made"
    arguments = ["--config-file", str(ETC / "config-generator.conf"), "--output-file", str(made)]
    # Before an installed distribution of this name, which Python then does not look at.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    program = f"from oslo_config.generator import main; main({arguments!r})"
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True)
    assert (ETC / "compute-agent.conf.sample").read_text() == made.read_text(), "run: make samples"


@pytest.fixture
def unit():
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(ETC / "compute-agent.service")
    return parser


def test_the_unit_leaves_guests_alone_and_lets_the_agent_make_groups(unit):
    assert (unit["Service"]["Delegate"], unit["Service"]["KillMode"]) == ("yes", "process")
    assert unit["Service"]["ExecReload"].endswith("-HUP $MAINPID")


def test_the_unit_starts_what_is_installed(unit):
    program, *arguments = unit["Service"]["ExecStart"].split()
    assert (Path(program).name, arguments[-1]) == ("compute-agent", "run")
