"""Searches the read model with pure functions: allocation candidates, their diagnosis, and claims.

Nouns
    A *request* is a parsed query string, which consists of *groups*. Several providers can serve the group
    without a suffix together; exactly one provider serves each group with a suffix. A *need* is the smallest
    part of a request that one provider serves: each suffixed group is a need, and so is each resource class
    of the unsuffixed group. A need has amounts of resource classes, and *conditions* that its provider has to
    meet, such as required traits. Each kind of condition is one Python class, which is listed once. All
    modules that read conditions find the class in this list.

    A candidate is *anchored* at a tree, which is the tree of the host. The providers of a candidate come from
    a *provider set*: the tree, and the sharing providers of its aggregates. The *options* of a need are the
    providers of the set that can serve it. An *assignment* maps some of the needs to chosen options. The
    *rules* say which choices a candidate is allowed to combine. A complete assignment is a *candidate*. A
    *pattern* is a candidate in which positions of the provider set stand for the providers. An *offer* is a
    provider set with a batch of its patterns. For answers, positions are counted among the options only,
    which form an *option set*. So hosts of unlike structures can share patterns.

    A *compiled request* applies to all trees of one structure in which providers at the same positions meet
    the conditions of the request. To recognise equivalent trees, the search compares only the free amounts
    that matter to the request. For most resource classes, it compares whether a provider has enough for a
    need. Several needs *contest* a class if all of them ask for it. For a contested class, the search
    compares the free amount itself. If several trees are equal in this comparison, the search visits only one
    of them. Trees of different compiled requests are also equivalent if their options have the same
    relations, such as a common parent. For claims, their options must also have the same positions. If each
    rule compares two needs at a time, the first assignments do not depend on amounts, and the snapshot keeps
    them for later requests of the same *form*. A *dead end* is a partial assignment that no choice for the
    remaining needs can complete. An assignment that differs from a dead end only in equivalent providers is a
    dead end, too. A search *rests* at a tree after many choices without a result, so that other trees come
    first. Each step of a search *spends* a part of its *budget*.

Modules
    - ``request`` has the classes of requests, which ``placement.schemas`` makes, and filters the providers
      for ``GET /resource_providers``. ``conditions`` turns a request for candidates into needs and
      conditions.
    - ``roots`` finds the trees in which a search can have results. It begins with the rarest requested
      property.
    - ``candidate_search`` goes from tree to tree and orders the candidates.
    - ``equivalence`` groups trees, and ``compiled_request`` searches each group once.
    - ``backtracking`` tries assignments of one tree. ``rules`` excludes impossible assignments first, and
      ``symmetry`` recognises assignments that differ only in equal providers and equal groups.
    - ``candidates`` has the classes of the results, ``rendering`` writes the answer, and ``budget`` limits
      the work.
    - ``diagnosis`` explains why a request has few candidates or none, and which changes of the request would
      help.
    - ``claims`` finds a host for each claim, scores the possible choices, and writes the chosen allocations.

The order of calls
    ``placement.api`` parses a query, takes a view of the read model, and calls
    :func:`~placement.search.candidate_search.find_candidates` with a budget. The search makes needs and
    conditions, filters roots, groups equal trees, compiles the request once for each group of trees, and
    tries assignments.
    :func:`~placement.search.candidates.topology_first` orders the offers, and
    :func:`~placement.search.rendering.render_pieces` writes the answer. Diagnosis and claims call
    the same functions.

Imports
    The API, the schemas and the extras import this package. The package imports the read model, and
    ``claims`` also imports the store. A contract in ``pyproject.toml`` sets the order within this package:
    ``claims`` may import ``diagnosis``, and both packages may import the search for candidates.

A worked example
    Three hosts have the same structure: DISK_GB 100, and two NUMA nodes with VCPU 8 each. On ``cn1``, 5 VCPU
    of the first node are used. On ``cn3``, 10 GB of disk and 2 VCPU of the second node are used. The request
    is

        resources=DISK_GB:10&resources_CPU=VCPU:4

    and has two needs: DISK_GB:10 from one provider, and VCPU:4 from one provider for the group ``_CPU``. One
    compiled request applies to all hosts. The need for disk has an option at position 0, the other need at
    positions 1 and 2. The free amounts are (100, 3, 8), (100, 8, 8) and (90, 8, 6). Position 1 of ``cn1`` has
    too little VCPU; on ``cn2`` and ``cn3`` all options have enough. No class is contested (asked for by
    several needs), so ``cn2`` and ``cn3`` are equivalent. Two trees are searched, and ``cn3`` gets the
    patterns of ``cn2``:

        cn1(DISK_GB:10) + cn1_1(VCPU:4)
        cn2(DISK_GB:10) + cn2_0(VCPU:4)
        cn2(DISK_GB:10) + cn2_1(VCPU:4)
        cn3(DISK_GB:10) + cn3_0(VCPU:4)
        cn3(DISK_GB:10) + cn3_1(VCPU:4)

    With a second group that asks for VCPU:4, the two groups would contest VCPU and ask for 8 units in all. A
    node with 8 free VCPU could serve both groups, a node with 6 free VCPU only one of them. In this case the
    search would handle ``cn3`` separately.

Invariants
    - Without a limit each candidate is found exactly once. With a limit, the search finds at most that number
      of candidates. It finds fewer only if no more exist, or if it has spent its budget.
      ``tests/placement/search/brute.py`` defines a candidate, with a function for each rule.
    - A limit bounds not only the size of the answer but also the work, because the search stops at the limit.
    - If a tree can serve a request in many equivalent ways, one of these ways comes before all other ways of
      any tree. So a limit first cuts off candidates that differ from another candidate only in equal
      providers. This does not hold for a random order.
    - Two trees share patterns only if the conditions have the same results in both trees, and the free
      amounts that matter are the same.
    - Feasibility checks and dead ends rule out only impossible assignments. A need that passes a feasibility
      check can still turn out to be impossible to serve.
    - Each loop with a length that clients determine spends steps of the budget. A search that has spent its
      budget returns the candidates found so far. If there are none, the service refuses the request with an
      error that names the responsible group.
    - The search never decides about capacity, because the database checks each claim (``placement.store``).
"""
