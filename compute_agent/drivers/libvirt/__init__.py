"""Manages domains of libvirt, and sets their CPUs, memory and block I/O.

Other programs than the agent start and stop the domains through libvirtd.

Parts, from the driver down:

- :mod:`~compute_agent.drivers.libvirt.driver`: the driver, and its thread.
- :mod:`~compute_agent.drivers.libvirt.domain_table`: the domains that run, and those about to start.
- :mod:`~compute_agent.drivers.libvirt.domain_memory`: the memory limits of a domain.
- :mod:`~compute_agent.drivers.libvirt.running_domain`: one domain, and the calls that change it.
- :mod:`~compute_agent.drivers.libvirt.domain_definition` and
  :mod:`~compute_agent.drivers.libvirt.domain_metadata`: the XML of a domain as plain values.
- :mod:`~compute_agent.drivers.libvirt.qemu`: the QEMU process, and the roles of its threads.
- :mod:`~compute_agent.drivers.libvirt.connection`: the connection to libvirtd, and libvirt's event loop.
- :mod:`~compute_agent.drivers.libvirt.hook`: the hook that announces starts.

Order of calls: libvirt's event loop puts the uuid of a domain with an event into the queue of the driver's
thread. The thread reads the domain again, updates the table and reports the difference. The worker compares
settings with /proc and cgroups, and calls libvirtd only to change a setting.
"""
