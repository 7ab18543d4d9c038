"""The common parts of drivers of guests that other programs start, each in a control group of its own.

Terms: the *peer* is the program that starts the guests: systemd, Podman or Docker. A *subject* is a unit or
a container, whether it is a guest or not. A *value* is a setting of a group, such as ``AllowedCPUs``. A
value *of the guest's own* is the value that the guest had before the agent's first write.

``driver.py`` has the base class of the drivers, and the thread that reads changes from the peer. ``table.py``
has the guests, ``editor.py`` sets values and restores the values of the guest's own, and ``records.py``
stores these on disk. Pure functions make the decisions: ``declared.py`` parses settings, ``values.py``
chooses values to set, and ``kernel_values.py`` finds drift.

Invariants: before the agent changes a value for the first time, it stores the guest's own value on disk. A
guest that has ended, or that is no longer a guest, leaves no record. If a peer does not run, the drivers of
other guests continue to work.
"""
