"""Upgrades from earlier releases, with real programs of both releases, under load."""
