"""How much more fits: how many guests of each flavor, and what is in the way.

Nouns
    A *flavor* is a request for allocation candidates, with a name. A *host* is a tree of providers, by its
    root. A *way* is what one guest takes at a host: an amount of each of some *slots*, a slot being one
    inventory. Hosts that share a provider are *coupled*: what one takes of it the other has no more. All
    ways of a flavor take the same of each resource class, and a way that takes as much of each slot as
    another one, or more, is none.

    So many guests as *fit* have been found a place; more than *at most* so many do not, by a bound that is
    proved. Mostly both are the same. Where they are not, finding out would take too long.

    A host is *full* for a flavor if none fits. What is *short* there are the classes of which too little is
    left for the way that lacks the fewest of them; the others that the flavor asks for are *stranded*.

Who does what
    ``packing`` finds the ways of a flavor at a host, and how many guests go into what is free. ``capacity``
    does that for the whole cloud and by aggregate, and gathers what is short; ``proportions`` counts
    several flavors at once. ``split_count`` counts guests that a topology policy splits over zones. In a
    ``cluster_simulation`` guests are moved about: ``drain_plan`` finds places for those of some hosts,
    ``migration_plan`` the fewest moves that make room. All of these searches try and take back by a journal
    of ``trials``. ``handler`` reads where guests are and answers; ``document`` makes JSON.

A worked example
    ``cn1`` has two NUMA nodes with 4 and 3 VCPU free, and 10 GB of disk. The flavor is
    ``resources=DISK_GB:2&resources_CPU=VCPU:2``. There are two ways, one for each node, and both take 2 GB:
    of the first node 2 guests, of the second 1, by the disk 5. So 3 fit. On ``cn2``, the same with 1 GB of
    disk left, none does: DISK_GB is short, and 7 VCPU are stranded, which would do for 3.

What always holds
    - What a way is says the search (``placement.search``) alone.
    - At least as many guests as are said to fit do, claimed one by one, if they are claimed at those places.
    - All work is counted (``placement.search.budget``).
"""
