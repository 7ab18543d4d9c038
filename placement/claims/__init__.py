"""Claims in one call: what ``POST /ext/v1/claims`` decides, and how it is put into effect.

Nouns
    What is *wanted* is a request for candidates together with the consumer that shall hold what is found. A
    *choice* is a candidate that serves it; its *host* is the tree where it is anchored, by its root. Several
    that are wanted at once are *placed* one after the other, each in a *world* where those before hold their
    choices already: all of them, or none.

    A consumer may join a *group*, whose *members* are kept on one host or apart by the *policy* of the claim.
    By a *topology* dedicated CPUs and memory are *split* over *zones*, NUMA nodes with what is below them.

Who does what
    ``wanted``, ``choice`` and ``world`` are the nouns. ``placing`` decides: a pure function over the read
    model. Where an order is wanted it compares choices by ``scoring``; ``ceilings`` tells of each host more
    than which no choice there scores, so that ``best_first`` has few to look at. ``topology`` says how
    amounts are split over zones, ``splitting`` makes choices of that and of what the search finds for all
    else. ``claiming`` acts: it has choices made, has ``placement.store.bindings`` write them, and has others
    made if somebody else was faster. Where there is no place ``refusing`` says why, of the hosts that may be
    chosen; what would help where it may be split ``relaxing`` finds out, by placing it.

A worked example
    Host ``a`` has VCPU 4, ``b`` VCPU 8. Wanted are VCPU:4 for one consumer and VCPU:8 for another. If ``b``
    is looked at first, the first one goes there; in the world that is left nobody serves VCPU:8. So the
    first one goes to ``a``, the second to ``b``. Meanwhile another claim has taken VCPU 1 of ``b``: nothing
    is written, all is looked at again, and "no candidate" is the answer, with VCPU:7 as what would fit.

What always holds
    - A choice is written only if its providers are still described as they were when it was made
      (inventories, traits, aggregates, place in the tree), and still have room, and the policy of its group
      still allows it: in one transaction.
    - Who lost a race looks again, at all that was committed until then. "No candidate" is said only of such a
      look, never because others were faster: who loses time and again is told to try later.
    - Where several are wanted, "no candidate" means that there is no way to place them together. What cannot
      be found out within the budget is refused as too long a search.
"""
