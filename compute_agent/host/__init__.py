"""The host as the kernel describes it in /sys and /proc.

- ``topology``: CPUs, cores, caches and NUMA nodes as values
- ``reader``: reads the topology below a root, which may be a captured tree of another machine
- ``cpus`` and ``memory``: parts of the topology; ``kernel_files``: reads single files
- ``proc_stat`` and ``cycles``: CPU time, cycles and instructions
- ``reader_place``: CPUs on which threads of the agent read counters of caches
- ``cpu_power``, ``block_devices``, ``pci_devices``: frequencies and idle states, disks, PCI devices
- ``uevents``: events of the kernel about PCI devices
"""
