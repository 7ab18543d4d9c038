"""The host agent: reads the hardware, reports it to Placement, and keeps guests where they belong.

Imports point one way, from the commands down to ``model``, whose nouns know nobody: see CONTRIBUTING.md.
"""
