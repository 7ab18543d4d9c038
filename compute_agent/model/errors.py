"""The failures that several folders meet."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that the agent refuses to start with; the text names the options and CPUs concerned."""


class DriverError(Exception):
    """A guest could not be started, adopted, changed or stopped; the text says which and why."""


class GuestGoneError(DriverError):
    """The guest has ended meanwhile. Whoever wanted to change it has nothing left to do."""
