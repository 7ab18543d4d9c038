"""Builds configurations for loops, with the options of a test."""

from types import SimpleNamespace

from compute_agent.loops.base import ReloadedConfiguration


def configuration(options=None, control=None, client=None, settings=None, controllers=()):
    return ReloadedConfiguration(options, client, settings, controllers, control)


def reporting(client, interval=60):
    """The configuration of a loop of reports, with the seconds between two reports."""
    compute = SimpleNamespace(update_resources_interval=interval)
    placement = SimpleNamespace(report_retry_maximum=300)
    return configuration(SimpleNamespace(compute=compute, placement=placement), client=client)
