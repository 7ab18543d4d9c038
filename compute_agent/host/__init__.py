"""The host as the kernel describes it: CPUs, cores, caches and NUMA nodes, read from /sys and /proc."""
