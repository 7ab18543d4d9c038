"""Maintenance of whole databases, for the commands of ``placement-manage``.

Modules
    - ``sync`` takes over a database of OpenStack Placement if necessary, and migrates the schema.
    - ``audit`` finds contradictions between rows, by queries alone.
    - ``heal`` repairs contradictions that need no decision of an operator; the service may run meanwhile.

A worked example
    An operator has deleted a consumer with SQL, but not its allocation of 2 VCPU. The audit reports
    "allocations without consumer": these occupy capacity, but no client can see or release them. The repair
    gives the allocation a new consumer, in the project that the options name. Now an operator can see and
    delete the allocation.

Invariants
    - No repair deletes an allocation, or guesses lost data.
    - Each repair runs in a separate transaction, with the locks that requests take.
    - After a repair all workers read everything again.
"""
