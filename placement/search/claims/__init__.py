"""Finds hosts for claims, reservations and windows; ``POST /ext/v1/claims`` also writes the allocations.

Nouns
    A *wanted claim* is a request for candidates, with the consumer that shall get the allocations of one of
    them. A *choice* is a candidate that the search has selected for a wanted claim. The *host* of a choice is
    the root of the tree where the candidate is anchored. To *place* a wanted claim means to select its
    choice. Several claims are placed one after the other, each in a *scenario*: a snapshot in which the
    earlier claims already have the allocations of their choices. The service places either all claims or
    none.

    A consumer may join a *group*. The *policy* of the group keeps its *members* on one host or on different
    hosts. The *topology* of a claim *splits* dedicated CPUs and memory over *zones*: NUMA nodes with
    all their descendant providers.

Modules
    - ``claim`` has the classes of these nouns.
    - ``placement`` has pure functions that find a choice for each wanted claim in the read model.
    - ``scores`` compares choices by the criteria of the claim; ``score_bounds`` computes upper bounds of
      scores for each host, so that few hosts are searched.
    - ``topology`` splits amounts over zones, with the divisions of ``even_division``; ``split_choices``
      combines splits with candidates for the other resources.
    - ``service`` places claims and writes them to the database (``placement.store``). After a lost race, it
      repeats both steps.
    - ``reserved_amounts`` reads the amounts that claims take from reservations, and finds those amounts that
      their providers can no longer give.
    - ``availability`` finds the earliest windows in which claims fit at the same time. ``host_rooms`` keeps
      the free amounts of each host over time, and excludes starts at which their sum is too small.
      ``timetable`` caches the amounts of all providers over time.
    - ``window_search`` returns windows of claims, or the reason why there are none; it also finds other times
      at which claims without an end time would fit.
    - ``window_room`` makes room for windows: other windows move, or preemptible claims end.
    - ``longest_stay`` places preemptible claims on the hosts where they can run longest, and finds the latest
      end of refused claims.
    - ``claim_context`` has the objects that all searches use, and checks names in claims.
    - ``refusal`` explains why a claim has no place on any host, which changes would help, and which windows
      are in its way.

A worked example
    Host ``a`` has 4 free VCPU, host ``b`` has 8. One consumer wants VCPU:4, a second consumer wants VCPU:8.
    If the search begins at ``b``, it first places the first claim there; then no host has room for VCPU:8. So
    the search places the first claim on ``a``, and the second claim on ``b``. If another client takes one
    VCPU of ``b`` before the write, the transaction writes nothing, and the search runs again. The answer is
    "no candidate", with VCPU:7 as the largest amount that fits.

Invariants
    - One transaction both checks a choice and writes its allocations. The transaction checks that the
      providers of the choice have enough free capacity. It also checks that their inventories, traits,
      aggregates and places in the tree are unchanged since the choice, and that the policy of the group
      allows the choice.
    - After a lost race the search runs again, on the state that was committed until then. The answer "no
      candidate" always results from a search on the current state. A claim that loses every race gets the
      answer "try again later".
    - For several wanted claims, "no candidate" means that the cloud does not have room for all of them at the
      same time. If the search spends its budget before the answer is known, the service refuses the request
      because the search takes too long.
"""
