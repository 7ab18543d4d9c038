"""The read model: every resource provider in the memory of a worker, as the database has it now.

Nouns
    A *provider* is a resource provider with its inventories, traits, aggregates and what is used of it. The
    *snapshot* holds all of them, with the indexes that searches begin at. A provider and its descendants are
    a *tree*, and a provider's *position* in it is where it comes in the order of their ids.

    An inventory of a tree has a *slot*; what is *free* in each is all that changes when guests come and go.
    Trees of one *shape* have the same parents, resource classes and portions (``min_unit``, ``max_unit``,
    ``step_size``) at the same positions, and so the same slots; trees of one *kind* have the same traits,
    too. What a search finds out about a tree holds for all of its kind that have as much free.

    Each provider belongs to a *bucket*, and each bucket of the database has a *counter*. Who writes to a
    provider increments the counter of its bucket and *stamps* the provider with it. The sum of the counters,
    and whose history they are of, say where the database stands: as long as that is the same, nothing
    changed. The *fingerprint* of a bucket (how many providers it has, and the sum of their stamps) proves
    that what did not change is what was read before.

    What a *reservation* that expired holds is not in any view: whoever looks finds out by the clock of the
    database, which comes with the answer to where it stands, and has it given back first.

    The *file* of the model is a copy of it on disk, by which the next worker starts, as if it had slept since
    then: it goes on from there as it would from its memory.

    A request has its *turn*, in which nobody else has the model; what it sees is a *view*. Whoever takes long
    *gives way* and is then a *keeper* of the snapshot: others change a copy.

Who does what
    ``provider`` and ``trees`` say what there is, ``index`` and ``free`` where to begin, ``snapshot`` holds it
    together. ``rows`` reads providers out of the database, ``feed`` decides which to read, ``turns`` whose
    turn it is. ``columns`` writes a ``state`` down and reads it, ``file`` says who may, and when.

A worked example
    A host with two NUMA nodes. Each VCPU inventory has 8; of the first node's 5 are used:

        cn1: DISK_GB 100
        cn1_0, child of cn1: VCPU 8, 5 used
        cn1_1, child of cn1: VCPU 8

    The slots are (0, DISK_GB), (1, VCPU) and (2, VCPU), and free is (100, 3, 8). Of ``cn2``, the same with
    nothing used, free is (100, 8, 8): one kind, so that a plan made for one serves both. With a trait on
    ``cn2`` they are still of one shape, with a ``max_unit`` of 4 no more. The free index of VCPU has 8 for
    both.

    A worker knows the bucket of ``cn1_1`` at counter 40. A guest claims 2 VCPU there: the transaction adds a
    random step, say 7, and stamps ``cn1_1`` with 47, but not its description, as nothing but usage changed.
    The next request finds the sum 7 above the known one, the bucket at 47, and in it one provider stamped
    with more than 40: it reads what is used of that one, and nothing else of it. ``cn1`` gets a new tree,
    with (100, 3, 6) free; the tree of ``cn2`` stays the object that it was, and so does what others keep by
    it.

What always holds
    - What was committed before a request came in is in its view.
    - Providers and trees are never changed, only replaced: a tree is the same object until anything in it
      changes. So trees, shapes and kinds are keys of caches, by identity.
    - A snapshot that was brought up to date step by step equals one that is made of the same providers anew.
    - A snapshot that has a keeper is not changed any more.
    - Where something does not fit (a counter below the known one, another history, another fingerprint),
      everything is read anew: the database is right, and the model only a copy.
"""
