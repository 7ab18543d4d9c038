"""Checks, repairs and migrates whole databases, for the commands of ``placement-manage``.

Modules
    - ``sync`` takes over a database of OpenStack Placement if necessary, and migrates the schema.
    - ``audit`` finds contradictions between rows, and changes nothing.
    - ``heal`` repairs the contradictions that an operator need not decide about, also while the service runs.

A worked example
    An operator has deleted a consumer with SQL, but not its allocation of 2 VCPU. The audit reports an
    allocation without a consumer, which occupies capacity, but which no client can see or release. The repair
    gives the allocation a new consumer, in the project that the options name. Now an operator can see and
    delete the allocation.

Invariants
    - No repair deletes an allocation, or guesses lost data. Planned allocations are deleted only if no
      reservation with a start has them, so that they could never begin.
    - Each kind of contradiction is repaired in separate transactions, with the locks that requests take.
    - All workers see a repair: they read everything again, or those providers that it has changed.
"""
