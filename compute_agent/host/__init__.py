"""The host as the kernel describes it: CPUs, cores, caches, NUMA nodes, read from /sys and /proc under any root."""
