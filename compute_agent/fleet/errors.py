"""What is wrong with the settings of the fleet."""

from __future__ import annotations


class FleetError(Exception):
    """A source cannot be read, or a revision is not to be taken up; the text says why."""


class SourceError(FleetError):
    """A source cannot be read now, as it cannot on all hosts that have it."""
