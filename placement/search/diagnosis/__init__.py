"""The diagnosis of a request: why it has these candidates, or none. Pure functions over the read model.

Nouns
    A *clause* is one statement of a request; its *condition* is the kind of statement. Exactly one provider
    serves a *part*: each group with a suffix is a part, and so is each resource class of the group without
    one. A *host* is a tree of providers, by its root; providers that share with it through aggregates count
    as its own. A *check* tests for one clause whether a provider meets it. The *reason* of a host is the
    first condition that it does not meet; a *near miss* is a host that lacks little of it. A *relaxation* is
    a minimal set of changes that makes the request fit.

The order of conditions
    One provider has to pass all conditions of a part:

    - ``resource_class`` (has an inventory), for each class;
    - ``capacity`` (enough is free), for each class;
    - ``min_unit``, ``max_unit`` and ``step_size``, for each class;
    - ``required`` traits, one of each set;
    - ``forbidden`` traits;
    - traits that the provider is ``outside`` of, and those that it is ``inside`` of;
    - ``in_tree``;
    - ``member_of``;
    - ``forbidden_aggregates``.

    A host is left as long as any of its providers has passed all conditions so far.

    Conditions of the whole request follow:

    - ``group``: for each part all of the above; the remaining hosts can serve this part and all parts before;
    - ``root_required`` and ``root_forbidden``;
    - ``required`` traits of the group without a suffix: any provider with one of its classes has one of them;
    - ``together``: all parts at once. This check covers sums of amounts and those traits, and below
      microversion 1.29 the rule of one provider per tree;
    - ``same_subtree``;
    - ``group_policy``.

Modules
    - ``clauses`` takes a request apart, and puts it together without some clauses. The pieces are those of
      its conditions (``placement.search.conditions``).
    - ``survey`` checks each part alone, once for equivalent hosts (``placement.search.equivalence``).
    - ``explanation`` checks the whole request and gathers the results; ``relaxations`` tries changes.
    - ``sentences`` makes a sentence and a document of an explanation.

A worked example
    Three hosts are one provider each, with VCPU 8. On ``cn1`` 6 are used, on ``cn2`` 3, on ``cn3`` none; only
    ``cn1`` and ``cn2`` have CUSTOM_A. The request is ``resources=VCPU:6&required=CUSTOM_A``. After
    ``capacity`` only ``cn3`` is left, and it does not meet ``required``. Two hosts have the reason
    ``capacity``, with ``cn2`` as the nearest miss (5 of 6); one has ``required``. Relaxations are VCPU:5
    (leaves ``cn2``), and no CUSTOM_A (leaves ``cn3``). The largest amount that fits is 5.

Invariants
    - Only ``placement.search`` defines a condition: its conditions check single providers, and the search
      itself checks rules between parts, and every relaxation.
    - A host fits, or has exactly one reason.
    - Every relaxation was tried. A relaxation of up to three changes that is missing is impossible, unless
      the answer is incomplete or has the largest number of relaxations.
    - All work is counted: an explanation says which of its fields lack something because the budget was
      spent.
"""
