"""The drivers of the agent: each one manages guests of one kind, such as domains of libvirt.

A host can have several drivers at once.

Parts:

- :mod:`~compute_agent.drivers.base`: the interface, one protocol for each subject: running guests, threads,
  CPUs, memory, block I/O, launching.
- :mod:`~compute_agent.drivers.libvirt`: domains, which libvirtd starts.
- :mod:`~compute_agent.drivers.processes`: processes, which the agent starts or adopts.
- :mod:`~compute_agent.drivers.systemd`: services, which operators start.
- :mod:`~compute_agent.drivers.containers`: containers of Podman and Docker.
- :mod:`~compute_agent.drivers.foreign`: the parts that drivers of services and containers share.
- :mod:`~compute_agent.drivers.peer`: the part that drivers of domains, services and containers share: the
  connection to the program that starts the guests.
- :mod:`~compute_agent.drivers.undivided`: the part that drivers of guests without guest CPUs share.
- :mod:`~compute_agent.drivers.combined`: several drivers as one, which passes each call to the driver of the
  guest.
- :mod:`~compute_agent.drivers.factory`: the choice of drivers, and the locks against a second agent.
- :mod:`~compute_agent.drivers.cgroup`, :mod:`~compute_agent.drivers.memory_limits` and
  :mod:`~compute_agent.drivers.procfs`: access to cgroup v2 and /proc, which all drivers use.

Order of calls: the starting agent calls ``choose_driver``, ``lock_for`` and ``open_drivers``, then ``guests``
and ``watch_guests``. From then on, a thread of the driver reports starts, changes and ends of guests. The
worker's controllers read and write the settings of one guest at a time. After ``close`` the guests continue
to run.

Two kinds of values pass between drivers and controllers: a :class:`~compute_agent.model.guest.Guest`, and the
settings in ``base``. A driver records on disk or in libvirt's metadata which values it has written. Thus the
driver neither changes nor removes values of other programs.

The package ``controllers`` and the packages above it are allowed to import ``base``; only ``agent`` imports
``factory``.
"""
