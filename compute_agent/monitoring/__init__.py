"""Monitoring: cache occupancy and memory bandwidth of guests and classes, from the counters of resctrl.

- ``loop``: the thread that reads counters once a round, with its metrics
- ``monitor``: keeps the monitoring groups of a mount, and reads their counters
- ``readings``: the values of a round, for watermarks and metrics
- ``samples``: the database file of stored samples
- ``history``: reads and plots stored samples, also while no agent runs
"""
