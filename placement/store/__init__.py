"""The writing operations: functions of a transaction. Each operation happens completely or not at all.

Nouns
    A *claim* is the complete wanted allocations of one consumer; a *holding* is one amount of its present
    allocations. The *supply* of a provider is its inventory of each class, and the usage of consumers other
    than the *claimants*. A *generation* is the version of a provider or consumer that a client knows; a
    request with an old one is refused. A *row* is the row of a locked consumer or provider.

The steps of a claim
    The functions of ``allocations`` lock the consumers, in the order of their uuids. Then these functions
    lock the buckets of all providers of the claim, in ascending order. Under these locks they check
    generations, delete the holdings of the claimants, read supplies, let ``claims`` decide, and write.
    Statements are queued and sent together when an answer is read. The stamps of changed providers go out
    with the commit (:mod:`placement.db.database`).

Modules
    - ``allocations`` writes, releases and shows allocations; ``claims`` decides whether providers can give
      them, without a database. ``consumers`` has the holders and their generations.
    - ``claim_commit`` writes claims that the read model has placed, with their groups (``groups``).
    - ``reservations`` and ``expiries`` are allocations with an end; ``expired`` has the queries that leave
      ended ones out.
    - ``providers``, ``inventories``, ``traits``, ``aggregates`` and ``attributes`` write one part of a
      provider each; ``trees`` writes all parts of a tree, ``reshaper`` moves inventories with allocations.
    - ``optimistic_write`` writes parts without reading first; ``names`` and ``classes`` have the names.
    - ``changes`` tells clients which providers have changed, ``holders`` which consumers hold something.

Imports
    The API, ``placement.search.claims``, maintenance and the extras import it. The package imports the tables
    and transactions of ``placement.db``, and the nouns of the read model (``provider``), never the snapshot.

A worked example
    A host has VCPU 8, of which ``a`` holds 5 and ``b`` 2. In one request ``a`` moves to another host and
    ``b`` grows to 4. No other consumer uses the host, so 4 of 8 is granted. Then the total is reduced to 3.
    Now ``b`` holds more than the total: it may claim 4 again, or less, but not 5. Any other consumer is
    refused even 1. No granted claim increases the excess, and guests can move away.

Invariants
    - A transaction decides about capacity by what it reads under its locks, never by the read model.
    - An operation has effects only in its transaction: an operation that loses against another one runs
      again.
    - Locks are taken in one order, so that operations do not deadlock. If two operations deadlock, the
      database ends one of them, and that operation runs again.
    - A consumer without allocations has no row, and no allocation is without a consumer.
    - Each change is stamped, so that no reader misses it.
"""
