"""Cache occupancy and memory bandwidth of guests and classes.

- ``loop``: the thread that reads counters once a round, with its metrics
- ``monitor``: the monitoring groups of a mount
- ``readings``: the values of a round, for watermarks and metrics
- ``samples``: the file of samples
- ``history``: reads and plots samples, also while no agent runs
"""
