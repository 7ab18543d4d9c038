"""Agents for tests of the command line."""

import os

import pytest

from tests.compute_agent.cmd.agents import Agent


@pytest.fixture
def agent(write_ini):
    """An agent of the real placement service; CPU 0 is dedicated, CPU 1 shared."""
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs CPUs 0 and 1")
    agent = Agent(write_ini())
    yield agent
    agent.close()
