"""The planner: counts the guests of each flavor that still fit, and finds moves that make room.

Nouns
    A *flavor* is a request for allocation candidates, with a name. A *host* is a tree of providers, by its
    root. A *way* is the demand of one guest at a host: an amount of each of some *slots*. A slot is one
    inventory. Hosts that share a provider are *coupled*: what a guest of one host takes from it is missing at
    the other. All ways of a flavor take the same amount of each resource class. A way is dropped if another
    way takes no more of any slot.

    A *lower bound* is a number of guests for which the planner knows places. An *upper bound* is proved: no
    more guests fit. Mostly both bounds are equal. They differ if the exact number would take too long.

    A host is *full* for a flavor if no guest fits. The *short* classes of a full host are those with too
    little free for the way that lacks the fewest classes. The free amounts of the other classes of the flavor
    are *stranded*.

Modules
    - ``packing`` finds the ways of a flavor at a host, and counts the guests that fit into free amounts.
    - ``capacity`` counts for the whole cloud and by aggregate, and gathers the short classes.
    - ``proportions`` counts several flavors at once. ``split_count`` counts guests that a topology policy
      splits over zones.
    - ``cluster_simulation`` has the free amounts while guests come and go. ``drain_plan`` uses it to find
      places for the guests of some hosts, and ``migration_plan`` to find the fewest moves that make room.
    - ``trials`` is the journal of these searches, by which they undo changes.
    - ``handler`` reads where guests are, and answers; ``document`` makes the JSON. ``options`` and ``rules``
      are separate, because tools load them without a handler.

The order of calls
    The handler parses flavors, opens a view of the read model, and counts each flavor
    (:func:`~placement_extras.planner.capacity.count_flavor`). For moves and drains, ``handler`` reads the
    guests of some hosts from the database, and simulates on a later view.

Imports
    Entry points load ``handler``, ``options`` and ``rules``; no other package imports this one. The planner
    uses the search, the read model, and ``placement.store.holders``.

A worked example
    ``cn1`` has two NUMA nodes with 4 and 3 VCPU free, and 10 GB of disk. The flavor is
    ``resources=DISK_GB:2&resources_CPU=VCPU:2``. There are two ways, one for each node, and both take 2 GB.
    The first node has room for 2 guests, the second for 1, the disk for 5. So 3 guests fit. ``cn2`` is the
    same with 1 GB of disk left, so no guest fits there. DISK_GB is short, and 7 VCPU are stranded, enough for
    3 guests.

Invariants
    - The search (``placement.search``) alone defines a way.
    - As many claims as a lower bound succeed, one after the other, at the found places.
    - All work is counted (``placement.search.budget``).
"""
