"""Builds configurations for loops, with the options of a test."""

from compute_agent.loops.base import ReloadedConfiguration


def configuration(options=None, control=None, client=None, settings=None, controllers=()):
    return ReloadedConfiguration(options, client, settings, controllers, control)
