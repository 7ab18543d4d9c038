"""The operations of the service on the database, and its queries other than those of the read model.

Each operation runs in one transaction, completely or not at all.

Nouns
    A *claim* has all allocations that one consumer wants. A *claimant* is a consumer with a claim, which
    replaces its current allocations. A *holding* is one of a claimant's current allocations. The *supply* of
    a provider has its inventories, and the usage of all consumers other than the claimants. A *generation* is
    the version of a provider or consumer; a request with an outdated generation is refused. A *row* is the
    database row of a locked consumer or provider.

The steps of a claim
    The functions of ``allocations`` lock the consumers, in the order of their uuids. After the consumers,
    these functions lock the buckets of all providers of the claim, in ascending order. While these locks are
    held, the functions check generations, delete the holdings of the claimants, and read supplies. ``claims``
    decides whether the supplies are enough. If the supplies are enough, the allocations are written.
    Statements are queued and sent together when an answer is read. The stamps of changed providers are sent
    with the commit (:mod:`placement.db.database`).

Modules
    - ``allocations`` writes, releases and reads allocations. ``claims`` decides whether providers have enough
      free capacity, and at which other times refused amounts fit, without using the database. ``consumers``
      reads and writes consumers and their generations, and has the conditions that leave out expired ones.
    - ``claim_commit`` writes claims that were placed with the read model, and ``groups`` their groups.
    - ``claimants`` locks the consumers of claims, with their holdings.
    - ``reservations`` reads reservations, and divides them between claims; ``reservation_changes`` writes
      them. ``expiries`` writes the end times of claims, ``claim_ends`` changes them, and ``due_changes``
      releases expired consumers and begins windows. ``booking_limits`` checks the limits on reservations of a
      project, and ``maintenances`` books whole hosts. ``window_room`` makes room for windows: preemptible
      claims end, and other windows move. ``window_history`` records windows that are over. ``time_profile``
      computes the amounts that later windows need, and ``holds`` keeps these amounts free. ``time_schedule``
      reads all amounts with their times, and ``time_skyline`` adds the amounts of a provider up.
      ``window_promises`` has the amounts of windows that claims have taken, and ``time_events`` the starts
      and ends that clients can read.
    - ``providers`` and ``inventories`` write providers with their inventories, ``provider_properties`` their
      traits, aggregates and attributes; ``trees`` writes all parts of a tree, ``reshaper`` moves inventories
      with allocations.
    - ``optimistic_write`` writes inventories, traits or aggregates without reading first. ``known_names``
      writes and looks up the names of resource classes and traits.
    - ``changes`` finds the providers that have changed, and ``holders`` the consumers with allocations of
      providers. ``usages`` computes the usage of projects, and of all windows.

Imports
    The API, ``placement.search.claims``, ``placement.maintenance`` and the extras import this package. The
    package imports tables and transactions of ``placement.db``, and the classes of
    ``placement.read_model.provider``. The package never imports the snapshot of the read model.

A worked example
    A host has 8 VCPU. The consumer ``a`` has 5 of them allocated, and ``b`` has 2. In one request ``a`` moves
    to another host and ``b`` grows to 4 VCPU. No other consumer uses the host, so the service grants the
    claim of 4 VCPU. Later an operator reduces the total to 3, so ``b`` has more allocated than the total.
    Consumer ``b`` may claim up to 4 VCPU again, but not 5. Any other consumer is refused even 1 VCPU. So no
    claim can increase the excess over the capacity, but guests can still move away.

Invariants
    - A transaction that checks capacity uses data that it reads under its locks. It uses data of the read
      model only if the same transaction checks that they are current.
    - An operation raises ``NotFound`` if the object in the path of its request does not exist. It raises
      ``ConcurrentUpdate`` if a given generation is not the current one.
    - An operation has effects only in its transaction. If another transaction makes an operation fail, the
      operation runs again.
    - Locks are taken in one order, so that operations do not deadlock. If two operations deadlock, the
      database ends one of them, and that operation runs again.
    - A consumer without allocations has no row, unless it is a window that begins later, or a window of which
      claims use all amounts. Each allocation has a consumer.
    - Each change stamps its providers, so that no reader misses the change.
"""
