"""Processes for tests of drivers."""

import subprocess

import pytest


@pytest.fixture
def sleeper():
    """A process that the agent did not start."""
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()
