"""The read model: a copy of all resource providers in the memory of a worker, as current as the database.

Nouns
    A *provider* is a resource provider with its inventories, traits, aggregates and usage. The *snapshot*
    contains all providers, and the indexes with which searches begin. A provider and its descendants are a
    *tree*. The *position* of a provider is its index in the tree, in the order of ids.

    The inventories of a tree are numbered; the number of an inventory is its *slot*. When guests start or
    end, only the *free* amounts of the slots change. Trees of one *structure* have the same parents, resource
    classes and portions (``min_unit``, ``max_unit``, ``step_size``) at the same positions, and therefore the
    same slots. Trees of one *class* also have the same traits at the same positions. The result of a search
    for a tree is valid for each tree of its class with the same free amounts, unless the request reads other
    attributes, such as aggregates.

    Each provider belongs to one of 256 *buckets*, according to its uuid. Each bucket has a *counter* in the
    database. A write to a provider increments the counter of its bucket and *stamps* the provider with the
    new value. The *version* of the database is the sum of all counters, together with an id of the database's
    history. While the version is the same, nothing has changed. The *fingerprint* of a bucket is its number
    of providers and the sum of their stamps. An equal fingerprint proves that the model has the right data of
    all unchanged providers.

    Expired reservations and claims must not count in an answer. Together with the version, the worker reads
    the time of the database's clock. If an allocation has expired by that time, the worker releases the
    allocation before it answers.

    The *file* of the model is a copy of the model on disk. A new worker starts with the model in this file,
    and reads from the database only what has changed since. A server reads the file once for all workers that
    it starts together, so that they share the memory of unchanged objects.

    Only one request at a time uses the model; the time in which a request may use it is its *turn*. Each
    request sees a *view* of the model. A long request *yields* from time to time: it lets other requests run,
    and *pins* its snapshot. While a snapshot is pinned, updates change a copy of the snapshot.

Modules
    - ``provider`` and ``trees`` have classes for these nouns, and ``index`` has the indexes of the snapshot.
      ``tree_classes`` makes trees that share equal objects, and indexes equivalent hosts. ``snapshot``
      combines providers, trees and indexes. ``layered_dict`` has dictionaries that do not copy unchanged
      entries. ``tree_table`` has tables of what explanations compare of each tree.
    - ``rows`` reads providers from the database; ``follower`` decides which providers to read, and checks
      what it has read.
    - ``feed`` gives requests their turns and their views.
    - ``columns`` encodes and decodes a model; ``model_file`` decides when a worker writes and reads the file,
      and has the model that a server reads before it forks workers.
    - ``metrics`` counts updates, and shows the inventories to Prometheus.

The order of calls
    A request calls :meth:`~placement.read_model.feed.ReadModel.fresh_view`. The method reads the version of
    the database, waits for its turn, and compares the version with the version of the model. If the version
    has changed, ``follower`` reads the providers with new stamps, and replaces them in the snapshot. The
    request searches the snapshot of its view until the turn ends.

Imports
    The search, the API and the extras import this package. The store imports only ``provider`` and ``rows``.
    The package imports ``placement.db``. No module of the package contains code for requests or HTTP.

A worked example
    A host has two NUMA nodes with 8 VCPU each. On the first node 5 VCPU are used:

        cn1: DISK_GB 100
        cn1_0, child of cn1: VCPU 8, 5 used
        cn1_1, child of cn1: VCPU 8

    The slots are (0, DISK_GB), (1, VCPU) and (2, VCPU), and the tuple of free amounts is (100, 3, 8). For an
    equal host ``cn2`` without usage, this tuple is (100, 8, 8). Both hosts belong to one class of trees, so a
    request that is compiled for one host applies to both hosts. If ``cn2`` had another trait, it would still
    be of the same structure, but of another class. If its ``max_unit`` of VCPU were 4, it would be of another
    structure. The index of free amounts of VCPU has 8 for both hosts, which is the largest free amount of one
    provider.

    A worker knows that the counter of the bucket of ``cn1_1`` is 40. A guest claims 2 VCPU there. The
    transaction adds a random step, for example 7, to the counter, and stamps ``cn1_1`` with 47.
    ``described_seq`` of the provider stays unchanged, because only usage has changed. The next request finds
    that the sum of all counters has grown by 7, and that the counter of this bucket is 47. One provider in
    the bucket has a stamp above 40. The request reads only the usage of this provider. A new tree, which has
    (100, 3, 6) free, replaces the old tree of ``cn1``. The tree of ``cn2`` stays the same object, so cache
    entries with this tree as their key stay valid.

Invariants
    - A fresh view contains all changes that were committed before its request arrived. A recent view can lack
      the changes of the last moments.
    - Provider and tree objects are never changed, only replaced, so a tree remains the same object until
      something in the tree changes. So caches use trees, structures and classes as keys, by their identity.
    - A snapshot that was updated step by step is equal to a new snapshot of the same providers.
    - A pinned snapshot is never changed.
    - After any contradiction the worker reads everything again, because the model is only a copy of the
      database. Contradictions are a counter below its known value, another history, and an unexpected
      fingerprint.
"""
