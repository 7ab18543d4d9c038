"""Checks, repairs and migrates whole databases, for the commands of ``placement-manage``.

Modules
    - ``sync`` takes over a database of OpenStack Placement if necessary, and migrates the schema.
    - ``audit`` finds contradictions between rows, and changes nothing.
    - ``heal`` repairs the contradictions that need no decision by an operator, also while the service runs.

A worked example
    An operator has deleted a consumer with SQL, but not its allocation of 2 VCPU. The audit reports an
    allocation without a consumer. This allocation occupies capacity, but no client can see or release it. The
    repair gives the allocation a new consumer, in the project that the options specify. Now an operator can
    see and delete the allocation.

Invariants
    - No repair deletes an allocation, or guesses lost data. A repair deletes planned allocations only if they
      belong to no reservation with a start. Such planned allocations could never begin.
    - Each kind of contradiction is repaired in separate transactions, with the locks that requests take.
    - All workers see a repair: they read all rows again, or the providers that the repair has changed.
"""
