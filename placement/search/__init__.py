"""The search wing: allocation candidates, their diagnosis and claims, by pure functions over the read model.

Nouns
    A *request* is the query string as data. Several providers may serve its *group* without a suffix; exactly
    one provider serves each group with a suffix. A *need* is the part that one provider serves: each suffixed
    group is a need, and so is each resource class of the unsuffixed group. A need has amounts and
    *conditions*. Each kind of condition is one class, registered once for all modules that read conditions.

    A candidate is *anchored* at a tree. The providers of a candidate come from a *provider set*: the tree,
    and the providers that share with it through aggregates. The *options* of a need are the providers of the
    set that can serve it. An *assignment* has chosen options for some of the needs; the *rules* say which
    choices go together. A complete assignment is a *candidate*. A *pattern* is a candidate written as
    positions in the provider set. An *offer* is a provider set with a batch of its patterns.

    A *compiled request* applies to all trees of a structure for which the conditions of the request have the
    same results. The search compares only the free amounts that matter: whether a provider has enough for a
    need, and the free amount of classes that several needs *contest*. Trees without a difference in these
    amounts are searched once. Trees of several compiled requests are equivalent, too, if their options have
    the same positions and relations. A *dead end* is an assignment that cannot be completed, nor can any that
    differs from it only in equivalent providers. A search *rests* when it has found nothing for a while. Each
    search *spends* steps of a *budget*.

Modules
    - ``request`` is made by ``placement.schemas``; ``conditions`` turns it into needs and conditions.
    - ``roots`` finds the trees that may serve it, beginning with the rarest requested property.
    - ``candidate_search`` goes from tree to tree and orders the candidates.
    - ``equivalence`` groups trees, and ``compiled_request`` searches each group once.
    - ``backtracking`` tries assignments of one tree; ``rules`` rules out the impossible first, and
      ``symmetry`` recognises assignments that differ only in equal providers and equal groups.
    - ``candidates`` are the results, ``rendering`` writes the answer, and ``budget`` bounds the work.
    - ``host_filter`` serves ``GET /resource_providers``.
    - ``diagnosis`` explains why candidates are few or none, and which changes would help.
    - ``claims`` places claims, scores choices and writes them.

The order of calls
    ``placement.api`` parses a query, takes a view of the read model, and calls
    :func:`~placement.search.candidate_search.find_candidates` with a budget. The search makes needs and
    conditions, filters roots, groups trees, compiles the request once for each group, and tries assignments.
    :func:`~placement.search.candidates.topology_first` orders the offers, and
    :func:`~placement.search.rendering.render_pieces` writes the answer. Diagnosis and claims call
    the same functions.

Imports
    The API, the schemas and the extras import it. The package imports the read model, and ``claims`` also the
    store. Within this package the order is that of the contract in ``pyproject.toml``: ``claims`` may use
    ``diagnosis``, and both may use candidates.

A worked example
    Three hosts have one structure: DISK_GB 100, and two NUMA nodes with VCPU 8 each. On ``cn1`` 5 VCPU of
    the first node are used, on ``cn3`` 10 GB and 2 VCPU of the second node. The request is

        resources=DISK_GB:10&resources_CPU=VCPU:4

    and has two needs: DISK_GB:10 from one provider, and VCPU:4 from one, for ``_CPU``. One compiled request
    holds for all hosts. The need for disk has an option at position 0, the other need at positions 1 and 2.
    The free amounts are (100, 3, 8), (100, 8, 8) and (90, 8, 6). Position 1 of ``cn1`` has too little; on the
    others all options have enough. No class is contested, so ``cn2`` and ``cn3`` are equivalent: two trees
    are searched, and ``cn3`` gets the patterns of ``cn2``:

        cn1(DISK_GB:10) + cn1_1(VCPU:4)
        cn2(DISK_GB:10) + cn2_0(VCPU:4)
        cn2(DISK_GB:10) + cn2_1(VCPU:4)
        cn3(DISK_GB:10) + cn3_0(VCPU:4)
        cn3(DISK_GB:10) + cn3_1(VCPU:4)

    A second group that asks for VCPU:4 would contest VCPU, 8 units in all. A node with 8 or more could serve
    both groups, a node with 6 only one. Then ``cn3`` would be searched separately.

Invariants
    - Without a limit each candidate is found exactly once. With a limit, at most that number is found, and
      fewer only where fewer exist. ``tests/placement/search/brute.py`` defines a candidate, with a function
      for each rule.
    - A limit bounds the work, not only the answer: the search looks for nothing beyond it.
    - If a tree can serve a request in many equivalent ways, one of them comes before all the others, also
      before those of other trees. So a limit first leaves out candidates that make no difference. A random
      order does not have this property.
    - Trees share patterns only if the conditions have the same results for them, and the free amounts that
      matter are the same.
    - Feasibility checks and dead ends rule out only what is impossible. A need that passes may still be
      impossible.
    - Each loop that a client can make long spends steps. A search that has spent its budget returns the
      candidates found so far. If there are none, the request is refused, and the refusal names the
      responsible group.
    - The search never decides about capacity: the database checks each claim (``placement.store``).
"""
