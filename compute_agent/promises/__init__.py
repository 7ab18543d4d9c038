"""Promises to guests, compared with what the kernel shows now.

Nouns: a *promise* is what a guest has by its allocation and its settings. There are promises of CPUs, their
siblings, NUMA nodes of memory, ways of caches, memory bandwidth, isolation, realtime priority, core
scheduling and devices. A *verdict* is a promise with
its state: ``kept``, ``limited`` (the agent or the kernel keeps it down on purpose), ``broken``, or
``unknown`` (it cannot be read).

Example: a guest holds CPUs 2-3 with the level ``quiet``, and interrupt 30 may run on CPU 2. The guest's
promise ``cpus`` is kept, and its promise ``quiet`` is broken by ``interrupt 30 (eth0)``. If the kernel
refuses to move that interrupt, the promise is limited.

The module :mod:`verdict` is a pure function of promises and facts. The module :mod:`facts` reads.

Invariants. A verdict depends on nothing that the agent remembers of its own writes. Nothing is written. An
unreadable fact never makes a promise kept.
"""
