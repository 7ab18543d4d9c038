"""The read model: every resource provider in the memory of a worker, equal to the current database.

Nouns
    A *provider* is a resource provider with its inventories, traits, aggregates and usage. The *snapshot* has
    all providers, with the indexes from which searches begin. A provider and its descendants are a *tree*.
    The *position* of a provider is its index in the tree, in the order of ids.

    Each inventory of a tree has a position called *slot*. When guests come and go, only the *free* amounts of
    the slots change. Trees of one *structure* have the same parents, resource classes and portions
    (``min_unit``, ``max_unit``, ``step_size``) at the same positions, and so the same slots. Trees of one
    *class* also have the same traits. The result of a search for a tree is valid for each tree of its class
    with the same free amounts.

    Each provider belongs to a *bucket*, and each bucket of the database has a *counter*. A write to a
    provider increments the counter of its bucket and *stamps* the provider with the new value. The *version*
    of the database is the sum of the counters and their history. While the version is the same, nothing has
    changed. The *fingerprint* of a bucket is its number of providers and the sum of their stamps. An equal
    fingerprint proves that the unchanged providers are the known ones.

    No view has expired reservations and claims. The version of the database comes with the time of its clock.
    If any allocation has expired by then, the worker releases it before it answers.

    The *file* of the model is a copy on disk, from which the next worker starts. The new worker follows the
    database from the state in the file.

    Requests use the model one at a time, in *turns*; each request sees a *view* of the model. A long request
    *yields* the lock and *pins* its snapshot: other requests then change a copy.

Modules
    - ``provider`` and ``trees`` have the classes of the nouns, ``index`` the starting points of searches;
      ``snapshot`` combines them.
    - ``rows`` reads providers from the database; ``follower`` decides which to read, and checks the result.
    - ``feed`` gives requests their turns and their views.
    - ``columns`` encodes a model and decodes it; ``model_file`` decides when a worker may write and read it.
    - ``metrics`` counts updates, and shows the inventories to Prometheus.

The order of calls
    A request opens :meth:`~placement.read_model.feed.ReadModel.fresh_view`. The method reads the version of
    the database, waits for its turn, and compares the version with that of the model. If the version has
    changed, ``follower`` reads the stamped providers by ``rows``, and puts them into the snapshot. The
    request searches the snapshot of its view until the turn ends.

Imports
    The search, the API, the store (``provider`` and ``rows`` alone) and the extras import it. The package
    imports ``placement.db``. The package knows neither requests nor HTTP.

A worked example
    A host has two NUMA nodes. Each VCPU inventory has 8; 5 of the first node are used:

        cn1: DISK_GB 100
        cn1_0, child of cn1: VCPU 8, 5 used
        cn1_1, child of cn1: VCPU 8

    The slots are (0, DISK_GB), (1, VCPU) and (2, VCPU), and the free amount is (100, 3, 8). For an equal host
    ``cn2`` without usage this tuple is (100, 8, 8). Both hosts are of one class: a request compiled for one
    serves both. With one more trait ``cn2`` would be of the same structure, with a ``max_unit`` of 4 it would
    not. The free index of VCPU has 8 for both.

    A worker knows the bucket of ``cn1_1`` at counter 40. A guest claims 2 VCPU there. The transaction adds a
    random step, say 7, and stamps ``cn1_1`` with 47. The stamp of the description stays unchanged, because
    only usage has changed. The next request finds that the sum has grown by 7, the bucket is at 47, and one
    provider in it has a stamp above 40. The request reads only the usage of that provider. A new tree with
    (100, 3, 6) free replaces that of ``cn1``. The tree of ``cn2`` stays the same object, so caches with this
    tree as their key stay valid.

Invariants
    - A view has all changes that were committed before the arrival of its request.
    - Providers and trees are never changed, only replaced: a tree is the same object until anything in it
      changes. So trees, structures and classes are keys of caches, by identity.
    - A snapshot that was updated step by step equals a new one of the same providers.
    - A pinned snapshot is never changed.
    - After any contradiction (a counter below the known one, another history, another fingerprint) everything
      is read again: the model is only a copy of the database.
"""
