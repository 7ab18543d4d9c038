"""The parts of drivers of guests that other programs start, each in a control group of its own.

Terms: the *peer* is the program that starts the guests: systemd, Podman or Docker. A *subject* is a service
or a container, which may be a guest. A *value* is a setting of a group, such as ``AllowedCPUs``. A value *of
the guest's own* is that before the agent's first write.

``driver.py`` is the base of the drivers, with the thread that follows the peer. ``table.py`` has the guests,
``editor.py`` sets values and gives them back, ``records.py`` keeps values on disk. Pure functions decide:
``declared.py`` (settings in texts), ``values.py`` (values to set) and ``kernel_values.py`` (drift).

Invariants: a value of the guest's own is on disk before the agent changes it. A guest that ends, or is no
guest any more, leaves no record. A peer that is away does not stop the drivers of other guests.
"""
