"""The search wing: allocation candidates, their diagnosis and claims, by pure functions over the read model.

Nouns
    A *request* is the query string as data. Of its *groups* the one without a suffix may be served by several
    providers, any other by exactly one. A *need* is what one provider serves: a suffixed group is one, the
    unsuffixed group is one for each resource class. It has amounts, and *conditions*: each is one class,
    registered once, which knows all that other modules ask about it.

    A candidate is *anchored* at a tree. What it may combine is a *provider set*: the tree, and the providers
    that share with it through aggregates. The *options* of a need are those of the set that can serve it. An
    *assignment* has chosen options for some of the needs; the *rules* say what goes together. A complete
    assignment is a *candidate*; as positions in the provider set, rather than uuids, it is a *pattern*; and a
    provider set with a batch of patterns that it follows is an *offer*.

    A *plan* is what a request may do with all trees of a shape in which all is equal that its conditions
    read. Of what is free it compares what matters: who has enough for a need, and how much there is of
    classes that several needs *contest*. Trees alike in that are searched once, also those of several plans
    where the positions of options, and what these have to do with each other, are the same. A *dead end* is
    an assignment that cannot be completed, whichever like providers are swapped. A search *rests* when it has
    found nothing for a while, and *spends* a *budget* of steps.

Who does what
    ``request`` is made by the schemas; ``conditions`` says what it comes down to. ``roots`` finds where it
    can be served at all, from the rarest thing that it asks for. ``candidate_search`` has a request go from
    tree to tree and orders the candidates, ``equivalence`` says which trees are alike, ``compiled_request``
    searches like trees once, and ``backtracking`` tries assignments of one of them, with ``rules`` that also
    rule out the impossible before it is tried.
    ``candidates`` are its results, ``rendering`` writes the answer, and ``budget`` bounds the work.
    ``host_filter`` is for ``GET /resource_providers``.

    ``diagnosis`` explains why candidates are few or none, and which changes would help. ``claims`` places
    claims, scores choices and writes them.

A worked example
    Three hosts of one kind: each has DISK_GB 100 and two NUMA nodes with VCPU 8. Of ``cn1`` 5 VCPU of the
    first node are used, of ``cn3`` 10 GB and 2 VCPU of the second node. The request is

        resources=DISK_GB:10&resources_CPU=VCPU:4

    and has two needs: DISK_GB:10 by one provider, and VCPU:4 by one, for ``_CPU``. All hosts are of one kind,
    so there is one plan: the need of disk has an option at position 0, the other at positions 1 and 2. Free
    are (100, 3, 8), (100, 8, 8) and (90, 8, 6). At ``cn1`` position 1 has not enough; at the others all
    options do, and no class is contested: they are alike, so that two trees are searched of the three, and
    the last answers with the patterns of ``cn2``:

        cn1(DISK_GB:10) + cn1_1(VCPU:4)
        cn2(DISK_GB:10) + cn2_0(VCPU:4)
        cn2(DISK_GB:10) + cn2_1(VCPU:4)
        cn3(DISK_GB:10) + cn3_0(VCPU:4)
        cn3(DISK_GB:10) + cn3_1(VCPU:4)

    Were another group to ask for VCPU:4, too, VCPU would be contested, by 8 in all: of a node that has 8 or
    more both could be had, of one with 6 one of them, so that ``cn3`` would be searched by itself.

What always holds
    - Without a limit every candidate is found, and each once; with one, as many as it says, if there are so
      many. ``tests/placement/search/brute.py`` says what a candidate is, one rule a function.
    - A limit bounds the work, not only the answer: nothing is looked for that nobody asks for.
    - Trees share patterns only where all that conditions read of them is equal, and all that matters of what
      is free.
    - What feasibility and dead ends rule out is impossible; what they let pass may still be.
    - Whoever writes a loop that a client can make long spends steps in it. A search that has spent all
      returns what it found, or is refused with the group to blame.
    - Nothing here decides about capacity: a claim is checked against the database (``placement.store``).
"""
