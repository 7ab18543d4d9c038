"""The host agent: reads the hardware, reports it to Placement, and keeps guests where they belong.

Imports point one way: `host` and `conf` know nobody, `inventory` knows `host`, the rest builds on them.
"""
