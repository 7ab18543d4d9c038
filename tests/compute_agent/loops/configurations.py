"""Configurations that loops are given, with what a test says of them."""

from compute_agent.loops.base import Configuration


def configuration(options=None, control=None, client=None, settings=None, controllers=()):
    return Configuration(options, client, settings, controllers, control)
