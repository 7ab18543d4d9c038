"""Searches of small hosts in the ways of large ones."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from placement.search import compiled_request


@pytest.fixture(scope="module")
def wide_from_the_start() -> Iterator[None]:
    """Small hosts, which brute force can judge, are searched in the way of wide ones."""
    with patch.object(compiled_request, "_WIDE", 1):
        yield
