"""The common parts of clouds, once for all tests."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.reference import ReferenceMissing
from tests.compute_agent.libvirtd import LibvirtMissing
from tests.databases import ServerMissing
from tests.openstack.ground import Ground, ground


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses doors."""
    parser.addoption("--doors", dest="doors", default="", help="names of doors; a semicolon separates them")


@pytest.fixture(scope="session")
def openstack() -> Iterator[Ground]:
    if os.geteuid() != 0:
        pytest.skip("guests of nova-compute need root")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a dedicated and a shared CPU are two")
    with ExitStack() as stack:
        try:
            made = stack.enter_context(ground())
        except (LibvirtMissing, ReferenceMissing, ServerMissing) as error:
            pytest.skip(str(error))
        yield made
