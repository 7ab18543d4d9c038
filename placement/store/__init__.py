"""The writing operations: functions of a transaction, each of which happens as a whole or not at all.

Nouns
    A *claim* is all that one consumer shall hold from now on; a *holding* one amount that it holds until now.
    The *supply* of a provider is what it has of each class, and what others than the *claimants* use of it. A
    *generation* is the version of a provider or consumer that a client knows: whoever gives an old one is
    refused. A *row* is what was read of a consumer or provider that is locked.

How a claim goes
    ``allocations`` locks the consumers, in the order of their uuids, and then the buckets of all providers
    that are touched, in ascending order. Under these locks it checks generations, takes away what the
    claimants hold, reads supplies, has ``claims`` decide, and writes. Statements are queued and sent together
    when an answer is looked at; the stamps of what changed go out with the commit
    (:mod:`placement.db.database`).

A worked example
    A host has VCPU 8, of which ``a`` holds 5 and ``b`` 2. In one request ``a`` moves to another host and
    ``b`` grows to 4: nobody else uses anything of the host, and 4 of 8 is granted. Then the total goes down
    to 3. ``b`` holds more than there is: it may claim 4 again, or less, but not 5, and anybody else is
    refused even 1. Nothing gets worse by what is granted, and guests can move away.

What always holds
    - Capacity is decided by what the transaction reads under its locks, never by the read model.
    - An operation keeps its effects inside the transaction: when it loses to another one it runs again.
    - Locks are taken in one order, so that two operations do not wait for each other; where they do, the
      database ends it and one runs again.
    - A consumer without allocations has no row, and allocations are never without a consumer.
    - Each change is stamped, so that no reader misses it.
"""
