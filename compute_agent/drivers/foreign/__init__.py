"""The common parts of drivers of guests that other programs start, each in a control group of its own.

Terms: the *peer* is the program that starts the guests: systemd, Podman or Docker. A *subject* is a service
or a container, which may be a guest. A *value* is a setting of a group, such as ``AllowedCPUs``. A value *of
the guest's own* is the value that the guest had before the agent's first write.

``driver.py`` has the base class of the drivers, with the thread that follows the peer. ``table.py`` has the
guests, ``editor.py`` sets values and restores old ones, and ``records.py`` stores values on disk. Pure
functions make the decisions: ``declared.py`` parses settings, ``values.py`` chooses values to set, and
``kernel_values.py`` finds drift.

Invariants: the agent stores a value of the guest's own on disk before it changes the value. A guest that has
ended, or that is no longer a guest, leaves no record. If a peer does not run, the drivers of other guests
continue to work.
"""
