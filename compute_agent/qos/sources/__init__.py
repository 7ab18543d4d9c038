"""Where usage is read: the host's /proc, the guests' cgroups and processes, the caches.

Each function of type Measure tells the usage of one metric from a round and the one before it; what cannot be
read is left out.
"""
