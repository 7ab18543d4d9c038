"""Promises to guests, compared with the present state of the kernel.

Nouns:

- A *promise* is what a guest should have by its allocation and its settings. There are promises of CPUs,
  their siblings, NUMA nodes of memory, ways of caches, memory bandwidth, isolation, realtime priority, core
  scheduling and PCI devices.
- A *verdict* is a promise with its state: ``kept``, ``limited`` (restricted for a known reason, such as
  throttling), ``broken``, or ``unknown`` (the agent cannot read the facts).

An example: a guest holds CPUs 2-3 with the isolation level ``quiet``, and interrupt 30 may run on CPU 2. The
guest's promise ``cpus`` is kept, and its promise ``quiet`` is broken by ``interrupt 30 (eth0)``. If the
kernel refuses to move that interrupt, the promise is limited.

The module :mod:`verdict` is a pure function of promises and facts. The module :mod:`facts` reads the kernel.

Invariants: verdicts come from the kernel's state only, not from the agent's memory of its writes. Nothing is
written. If a fact cannot be read, the promise does not count as kept.
"""
