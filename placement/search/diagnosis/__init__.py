"""Explains why a request has few candidates, or none.

The package consists of pure functions over the read model.

Nouns
    A *clause* is one statement of a request; the *condition* of a clause is its kind. Exactly one provider
    serves a *part* of a request: each group with a suffix is a part, and so is each resource class of the
    group without a suffix. A *host* is a tree of providers, identified by its root. Sharing providers of its
    aggregates count as the host's own. A *check* tests whether a provider meets one clause. The *reason* of a
    host is the first condition that the host fails. A *near miss* is a host that almost meets the condition
    that is its reason. A *relaxation* is a minimal set of changes that makes the request fit some host.

The order of conditions
    One provider has to meet all conditions of a part, which are checked in this order:

    - ``resource_class``, for each class: the provider has an inventory of the class;
    - ``capacity``, for each class: the provider has enough of the class free;
    - ``min_unit``, ``max_unit`` and ``step_size``, for each class: the bounds allow the amount;
    - ``required``: the provider has one trait of each set;
    - ``forbidden``: the provider has none of these traits;
    - ``outside``: neither the provider nor its ancestors have these traits; ``inside``: the provider and its
      ancestors together have them;
    - ``in_tree``: the provider is in the named tree;
    - ``member_of``: the provider is in an aggregate of each set;
    - ``forbidden_aggregates``: the provider is in none of these aggregates.

    A host remains after a condition if at least one of its providers meets this condition and all earlier
    ones.

    After these conditions on single providers, the diagnosis checks conditions on several providers of a
    host:

    - ``group``, for each part: a provider of the host meets all conditions of the part. The remaining hosts
      can serve this part and all earlier parts, each part alone;
    - ``root_required`` and ``root_forbidden``: traits of the root of the tree;
    - ``required``, for each set of traits of the group without a suffix: some provider with a class of this
      group has one of these traits;
    - ``all_groups``: one candidate serves all parts at once. This check covers sums of amounts, and the
      ``required`` traits of the group without a suffix. Below microversion 1.29, it also covers the rule that
      a candidate uses at most one provider of a tree;
    - ``same_subtree``;
    - ``group_policy``.

Modules
    - ``clauses`` splits a request into clauses, and builds requests without some clauses. A clause is a piece
      of a condition (``placement.search.conditions``).
    - ``survey`` checks each part alone, and once for all equivalent hosts (``placement.search.equivalence``).
    - ``explanation`` checks the whole request and gathers the results; ``relaxations`` tries changes.
    - ``sentences`` writes an explanation as a sentence and as a JSON document.

A worked example
    Three hosts have one provider each, with 8 VCPU. On ``cn1`` 6 VCPU are used, on ``cn2`` 3, and on ``cn3``
    none. Only ``cn1`` and ``cn2`` have the trait CUSTOM_A. The request is
    ``resources=VCPU:6&required=CUSTOM_A``. Only ``cn3`` passes ``capacity``, and it fails ``required``. Two
    hosts have the reason ``capacity``; the nearest miss is ``cn2``, with 5 of the 6 VCPU free. One host has
    the reason ``required``. One relaxation asks for VCPU:5, which fits ``cn2``. Another relaxation leaves out
    CUSTOM_A, which fits ``cn3``. The largest amount that fits is 5 VCPU.

Invariants
    - Conditions are defined only in ``placement.search``. The condition classes of that package check single
      providers; its search checks the rules between parts, and every relaxation.
    - A host either fits or has exactly one reason.
    - Every relaxation in an answer was tested by a search. A relaxation of at most three changes that is
      missing in an answer does not help. The exceptions are incomplete answers, answers with the maximum
      number of relaxations, and requests with a topology, for which each relaxation changes one clause.
    - Each step of the work is counted against the budget. An explanation lists the fields that are incomplete
      because the budget was spent.
"""
