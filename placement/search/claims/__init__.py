"""Claims in one call: what ``POST /ext/v1/claims`` decides, and how it is put into effect.

Nouns
    What is *wanted* is a request for candidates together with the consumer that shall hold what is found. A
    *choice* is a candidate that serves it; its *host* is the tree where it is anchored, by its root. Several
    that are wanted at once are *placed* one after the other, each in a *world* where those before hold their
    choices already: all of them, or none.

    A consumer may join a *group*, whose *members* are kept on one host or apart by the *policy* of the claim.
    By a *topology* dedicated CPUs and memory are *split* over *zones*, NUMA nodes with what is below them.

Who does what
    ``claim`` has the nouns. ``placing`` decides: a pure function over the read model. With an order it
    compares choices by ``scores``; ``score_bounds`` has upper bounds for each host, so that few are searched.
    ``topology`` says how amounts are split over zones, ``splitting`` combines that with what the search finds
    for all else. ``service`` acts: it has choices made and written (``placement.store``), and made again if
    another claim was faster. ``refusal`` says why there is no place among the hosts that may be chosen, and
    what would help.

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
