"""The planner: counts the guests of each flavor that still fit, and finds moves that make room.

Nouns
    A *flavor* is a request for allocation candidates, with a name. A *host* is a tree of providers,
    identified by its root. A *slot* is one inventory of a host. A *way* to place a guest of a flavor at a
    host is a set of slots with an amount of each. All ways of a flavor take the same total amount of each
    resource class. A way is dropped if another way takes no more of any slot. Hosts are *coupled* if the same
    provider shares with them: amounts that a guest of one host takes from this provider are missing at the
    other hosts.

    A *lower bound* is a number of guests for which the planner knows places. An *upper bound* is a number for
    which the planner has proved that no more guests fit. Mostly both bounds are equal. They differ if
    computing the exact number would take too long.

    A host is *full* for a flavor if no guest of the flavor fits. Of all ways at a full host, the way that
    lacks the fewest classes counts. The classes that this way lacks are *short*. The free amounts of the
    flavor's other classes are *stranded*.

Modules
    - ``packing`` finds the ways of a flavor at a host, and counts the guests that fit into free amounts.
    - ``capacity`` counts guests for the whole cloud and by aggregate, and groups full hosts by their short
      classes.
    - ``proportions`` counts several flavors at once. ``split_count`` counts guests that a topology policy
      splits over zones.
    - ``cluster_simulation`` has the free amounts while guests come and go. ``drain_plan`` uses it to find
      places for the guests of some hosts, and ``migration_plan`` to find the fewest moves that make room.
    - ``trials`` has the journal with which these searches undo changes.
    - ``handler`` reads the places of guests and answers requests; ``document`` makes the JSON. ``options``
      and ``rules`` are separate modules, because tools load them without ``handler``.

The order of calls
    The handler parses flavors, opens a view of the read model, and counts the guests of each flavor
    (:func:`~placement_extras.planner.capacity.count_flavor`). For moves and drains, the handler reads the
    guests of some hosts from the database, then opens another view, and simulates moves on its snapshot.

Imports
    Entry points load ``handler``, ``options`` and ``rules``; no other package imports this package. The
    planner imports the search, the read model, and ``placement.store.holders``.

A worked example
    ``cn1`` has two NUMA nodes with 4 and 3 VCPU free, and 10 GB of disk. The flavor is
    ``resources=DISK_GB:2&resources_CPU=VCPU:2``. There are two ways, one for each node, and both take 2 GB of
    disk. The first node has room for 2 guests, the second node for 1 guest, and the disk for 5 guests. So 3
    guests fit. ``cn2`` has the same nodes, but only 1 GB of free disk, so no guest fits there. DISK_GB is
    short, and 7 VCPU are stranded, which would be enough for 3 guests.

Invariants
    - Only the search (``placement.search``) finds ways; the planner has no rules of its own.
    - If guests are claimed one after the other at the found places, at least as many claims as the lower
      bound succeed.
    - All work is counted and limited (``placement.search.budget``).
"""
