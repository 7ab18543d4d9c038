"""Fixtures of the tests that run in the machine."""

import urllib.parse

import pytest

from tests.compute_agent import servers
from tests.vm import machine


@pytest.fixture
def share(tmp_path):
    """A folder to share with the machine; skips where there is none."""
    try:
        machine.find()
    except machine.MachineMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path / "share"
    folder.mkdir()
    return folder


@pytest.fixture
def placement(tmp_path):
    """The options of a machine that reaches a placement service outside of it, as $PLACEMENT."""
    folder = tmp_path / "service"
    folder.mkdir()
    with servers.running("ours", folder) as url:
        port = urllib.parse.urlsplit(url).port
        yield "--net", "--cache", "loose", "--env", f"PLACEMENT=http://{machine.HOST}:{port}"
