"""Drivers: each manages guests of one kind, which are domains of libvirt or plain processes.

Parts:

- :mod:`~compute_agent.drivers.base`: the interface, one protocol for each subject: running guests, threads,
  CPUs, memory, block I/O, launching.
- :mod:`~compute_agent.drivers.libvirt`: domains, which libvirtd starts.
- :mod:`~compute_agent.drivers.processes`: processes, which the agent starts or adopts.
- :mod:`~compute_agent.drivers.factory`: the choice of the driver, and the lock against a second agent.
- :mod:`~compute_agent.drivers.cgroup`, :mod:`~compute_agent.drivers.memory_limits` and
  :mod:`~compute_agent.drivers.procfs`: access to cgroup v2 and /proc that both kinds share.

Order of calls: ``choose_driver``, ``lock_for`` and ``open_driver`` at the start of the agent, then ``guests``
and ``watch_guests``. From then on the driver reports starts, changes and ends from a thread of its own. The
worker's controllers read and write the settings of one guest at a time. After ``close`` the guests run on.

Two values cross the interface: a :class:`~compute_agent.model.guest.Guest`, and the settings in ``base``. A
driver notes durably which values it wrote, so that those of other programs are never changed or removed.

Rooms from ``controllers`` upwards may import ``base``; only ``agent`` imports ``factory``.
"""
