"""Derives the provider tree of a host from its topology and the operator's ini file."""
