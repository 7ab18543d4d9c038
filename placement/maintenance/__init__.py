"""Maintenance of whole databases, for the commands of ``placement-manage``.

Modules
    - ``sync`` first takes over a database of OpenStack Placement, then brings the schema up to date.
    - ``audit`` finds contradictions between rows: pure queries.
    - ``heal`` repairs contradictions that need no decision of an operator, while the service runs.

A worked example
    A consumer was deleted by hand, and its allocation of 2 VCPU is left. The audit finds "allocations without
    consumer": no client can see or release them, and they occupy capacity. The repair gives the allocation a
    new consumer, of the project that the options name. Now an operator can see and delete it.

Invariants
    - No repair deletes an allocation, or guesses lost data.
    - Each repair runs in a transaction of its own, under the locks of ordinary requests.
    - After a repair all workers read everything again.
"""
