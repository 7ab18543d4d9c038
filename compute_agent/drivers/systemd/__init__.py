"""The driver of guests that are services of systemd.

Terms: a *service* is a unit of type ``.service`` of the host's systemd. A service with the section
``[X-ComputeAgent]`` is a guest while it has a main process. A *property* is a setting of a service that
systemd keeps (``AllowedCPUs``). A property *of its own* has the value that the service had before the agent.

``driver.py`` is the driver, on the base of :mod:`compute_agent.drivers.foreign`. ``unit_table.py`` finds
guests, ``editor.py`` sets properties and gives them back. Pure functions decide: ``unit_settings.py`` (the
section), ``unit_state.py`` (answers of systemd) and ``unit_properties.py`` (types on the bus). ``manager.py``
calls systemd, ``bus.py`` is the connection.

Example: ``db.service`` has ``[X-ComputeAgent]`` and is given CPUs 4-7. The agent notes ``AllowedCPUs`` as
empty in its record, sets 4-7, and waits until ``cpuset.cpus`` of the group has 4-7. When the service stops,
the agent sets ``AllowedCPUs`` to empty again, and removes systemd's file of it and the record.

Invariants: a value of the service's own is on disk before the agent changes it. The agent writes no file of a
control group. No call waits longer than ``bus.CALL_SECONDS`` for systemd.
"""
