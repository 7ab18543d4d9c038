"""Fixtures: resctrl trees captured from real machines, and helpers that resolve configurations on them."""

import os
import tarfile
from pathlib import Path

import pytest

from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.layout import build_layout
from compute_agent.resctrl.mount import read_platform
from tests.compute_agent.resctrl.fake import FakeResctrl

SHARED = Path(os.environ.get("PLACEMENT_COMPUTE_SHARED", Path(__file__).parents[4] / "shared"))
ARCHIVES = SHARED / "resctrl-trees"


class Captured:
    """A writable copy of a captured resctrl tree, which checks writes like the kernel."""

    def __init__(self, files):
        self.files = files
        self.platform = read_platform(files)
        self.engine = choose_codec(self.platform)

    @property
    def present(self):
        return read_groups(self.files)

    def host(self, shared_ways=2, prefix="ours."):
        return build_layout(self.platform, self.engine, self.present, prefix, shared_ways)


@pytest.fixture
def captured(tmp_path):
    """A function that returns the tree in an archive, by the name of the archive."""

    def unpack(name):
        archive = ARCHIVES / f"{name}.tar.bz2"
        if not archive.is_file():
            pytest.skip(f"no {archive}")
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / "captured", filter="data")
        return Captured(FakeResctrl.copied(tmp_path / "captured" / f"resctrl.{name}", tmp_path / "tree"))

    return unpack
