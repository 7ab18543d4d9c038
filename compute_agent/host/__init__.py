"""The host as the kernel describes it in /sys and /proc.

- ``topology``: CPUs, cores, caches and NUMA nodes as values
- ``reader``: reads the topology below a root, which may be a captured tree of another machine
- ``cpus``, ``memory`` and ``kernel_files``: read parts of the topology, and single files
- ``proc_stat`` and ``cycles``: the use of CPUs over time
- ``cpu_power`` and ``block_devices``: frequencies, idle states and disks
- ``pci_devices``: PCI devices, and the kernel's events about them
"""
