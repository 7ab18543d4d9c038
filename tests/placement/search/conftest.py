"""Fixtures by which small hosts are searched with the methods for large hosts."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from placement.search import compiled_request


@pytest.fixture(scope="module")
def wide_from_the_start() -> Iterator[None]:
    """Search small hosts, which brute force can check, with the method for hosts with many ways."""
    with patch.object(compiled_request, "_WIDE", 1):
        yield
