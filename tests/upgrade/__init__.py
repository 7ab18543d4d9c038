"""Upgrades from earlier releases, with real programs of both, under load."""
