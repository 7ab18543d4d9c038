"""The planner: counts the guests of each flavor that still fit, and finds moves that make room.

Nouns
    A *flavor* is a request for allocation candidates, with a name. A *host* is a tree of providers,
    identified by its root. A *slot* is one inventory of a host. A *way* to place a guest of a flavor at a
    host is a set of slots, with the amount that the guest takes from each slot. All ways of a flavor take the
    same total amount of each resource class. A way is left out if another way takes the same or less from
    each slot. Hosts are *coupled* if they use the same sharing provider. If a guest on one host takes an
    amount from this provider, the other hosts can no longer use this amount.

    A *lower bound* is a number of guests for which the planner knows places, so these guests certainly fit.
    An *upper bound* is a number of guests above which, by a proof of the planner, no more guests fit. In most
    cases the two bounds are equal. The bounds differ if the exact number would take too long to compute.

    A host is *full* for a flavor if no guest of the flavor fits. At a full host, each way needs more of at
    least one resource class than is free. The planner chooses the way with the smallest number of such
    classes: these classes are *short*. The free amounts of the flavor's other classes are *stranded*.

Modules
    - ``packing`` finds the ways of a flavor at a host, and counts the guests that fit into free amounts.
    - ``capacity`` computes how many guests fit in the whole cloud and in each aggregate, and groups full
      hosts by their short classes.
    - ``proportions`` computes how many guests of several flavors fit at once. ``split_count`` computes how
      many guests fit if a topology policy splits them over zones. ``repeated_splits`` counts those of simple
      flavors, once for all hosts with equal zones.
    - ``cluster_simulation`` keeps the free amounts while a search adds and removes guests. ``drain_plan``
      uses the simulation to find places for the guests of some hosts. ``migration_plan`` uses it to find the
      smallest number of moves that make room.
    - ``trials`` has the journal with which the planner's searches undo their changes.
    - ``handler`` reads the allocations of guests, and answers requests with JSON.
      ``rules`` is a separate module, so that tools can load the rules without ``handler``. This module has
      the option of the planner, for the same reason.

The order of calls
    The handler parses flavors, opens a view of the read model, and counts the guests of each flavor
    (:func:`~placement_extras.planner.capacity.count_flavor`). If the request asks for moves or a drain, the
    handler then reads the guests of some hosts from the database. Afterwards, the handler opens another view,
    and simulates moves on the snapshot of this view.

Imports
    Entry points load this module, ``handler`` and ``rules``. The console imports ``rules``, and no other
    package imports the planner. The planner imports the search, the read model, ``placement.store.holders``
    and ``placement.store.maintenances``.

A worked example
    The host ``cn1`` has two NUMA nodes with 4 and 3 free VCPU, and 10 GB of free disk. The flavor is
    ``resources=DISK_GB:2&resources_CPU=VCPU:2``. The flavor has two ways at this host, one for each node.
    Each way takes 2 GB of disk and 2 VCPU. The first node has room for 2 guests, the second node for 1 guest,
    and the disk for 5 guests. So 3 guests fit. The host ``cn2`` has the same nodes, but only 1 GB of free
    disk, so no guest fits. At ``cn2`` DISK_GB is short, and 7 VCPU are stranded. These 7 VCPU would be enough
    for 3 guests.

Invariants
    - The planner uses only the search (``placement.search``) to find the ways of a flavor.
    - If a client claims guests one after the other at the places that the planner found, the number of
      successful claims reaches at least the lower bound.
    - A budget counts and limits the steps of all work (``placement.search.budget``).
"""

from typing import Final

from oslo_config import cfg

from placement.conf import api

GROUP: Final = api.GROUP
"""The configuration section of the extended API, which has the option of the planner."""

OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "capacity_deadline",
        default=2.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of a request that computes how many guests
of each flavor still fit (POST /ext/v1/capacity). If the request takes longer,
the status is 400 with the code placement.ext.search_too_long. The text of the
error has the flavor, or the step, at which the limit was reached. If the
flavor has a topology, the request succeeds in spite of the limit. The answer
then has a lower and an upper bound, and a warning with the number of hosts on
which guests were placed.

Each request for a capacity counts as a long search. The option [api]
candidates_deadline describes how many long searches a worker runs at the same
time.

""",
    ),
]
