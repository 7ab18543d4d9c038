"""The driver of guests that are units of systemd.

Terms: a *unit* is a service, a scope or a slice of the host's systemd. A scope has processes that another
program has started, and a slice has the processes of all units below it. A unit with the section
``[X-ComputeAgent]``, or with a name that matches the option ``guest_names``, is a guest while it has
processes. In a unit without a main process, the oldest process counts as the main process. A *property* is a
setting of a unit that systemd keeps, such as ``AllowedCPUs``. A value *of the unit's own* is the value that a
property had before the agent changed it.

``driver.py`` is the driver, which extends :mod:`compute_agent.drivers.foreign`; it sets properties and
restores their old values. ``unit_table.py`` finds guests, and parses the section ``[X-ComputeAgent]``.
``unit_state.py`` parses answers of systemd, and converts types of the bus. ``manager.py`` calls systemd, and
``bus.py`` has the connection.

Example: ``db.service`` has the section ``[X-ComputeAgent]``, and the agent gives it CPUs 4-7. The agent
records that ``AllowedCPUs`` was empty, sets 4-7, and waits until ``cpuset.cpus`` of the service's control
group has 4-7. When the service stops, the agent sets ``AllowedCPUs`` to empty again, and removes two files:
systemd's file of this property, and the record.

Invariants: the agent stores a value of the unit's own on disk before it changes the value. For units, the
agent writes no file of a control group. A unit below a slice that is a guest is no guest. No call
waits longer than ``bus.CALL_SECONDS`` for systemd.
"""
