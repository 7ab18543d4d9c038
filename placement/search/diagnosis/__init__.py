"""Why a request has the candidates that it has, or none: by pure functions over the read model.

Nouns
    A *clause* is one thing that a request says, a *condition* what kind of thing it is. What exactly one
    provider serves is a *part*: a group with a suffix is one, the group without a suffix is one for each
    resource class. A *host* is a tree of providers, by its root; it has what shares with it through
    aggregates, too. A *check* is what one provider has to be because of a clause. The *reason* of a host
    is the first condition that it does not meet, a *near miss* a host that lacks little of it. A
    *relaxation* is a set of changes with which the request fits, while with no part of them it does.

The order of conditions
    Of a part, one provider has to pass all of them: ``resource_class`` (has an inventory), for each
    class; ``capacity`` (enough is free), for each class; ``min_unit``, ``max_unit`` and ``step_size``,
    for each class; ``required`` traits, each set of which one is enough; ``forbidden`` traits;
    ``in_tree``; ``member_of``; ``forbidden_aggregates``. Hosts are left where any provider of theirs
    passed so far.

    Of the request: ``group``, for each part all of the above, so that hosts are left that can serve it
    and the parts before; ``root_required``, ``root_forbidden``; ``required`` traits of the group without
    a suffix, where any provider that has one of its classes has one of them; ``together`` (all parts at
    once: sums of amounts, those traits, and below microversion 1.29 one provider of a tree at most);
    ``same_subtree``; ``group_policy``.

Who does what
    ``clauses`` takes a request apart, and puts it together without some clauses; the pieces are those of its
    conditions (``placement.search.conditions``). ``survey`` looks at parts alone, once for hosts that are
    alike (``placement.search.equivalence``), ``explanation`` at the request and gathers all, ``relaxations``
    tries changes, ``sentences`` makes a sentence and a document.

A worked example
    Three hosts, each one provider with VCPU 8; of ``cn1`` 6 are used, of ``cn2`` 3, of ``cn3`` none, but
    only ``cn1`` and ``cn2`` have CUSTOM_A. The request is ``resources=VCPU:6&required=CUSTOM_A``.
    ``capacity`` leaves ``cn3``, which fails ``required``: two hosts have the reason ``capacity``, with
    ``cn2`` the nearest miss (5 of 6), one has ``required``. Relaxations are VCPU:5 (leaves ``cn2``), and
    no CUSTOM_A (leaves ``cn3``); the largest amount that fits is 5.

What always holds
    - What a condition means is said in ``placement.search`` alone: single ones by its conditions,
      what ties parts together, and every relaxation, by the search itself.
    - A host fits, or has exactly one reason.
    - Every relaxation has been tried; one of up to three changes that is missing here is impossible,
      unless the answer is incomplete or has as many as it may.
    - All work is counted: an explanation whose budget is spent says what it lacks.
"""
