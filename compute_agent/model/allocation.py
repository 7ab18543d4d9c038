"""What a consumer holds in Placement."""

from __future__ import annotations

from collections.abc import Mapping

Allocation = Mapping[str, Mapping[str, int]]
"""Amounts by provider uuid and resource class."""
