"""Serves ``POST /ext/v1/claims``: finds a host for each claim, and writes the allocations, in one call.

Nouns
    A *wanted claim* is a request for candidates, with the consumer that shall hold one of these candidates. A
    *choice* is a candidate that the search has selected for a wanted claim. The *host* of a choice is the
    root of the tree where the candidate is anchored. To *place* a wanted claim means to select its choice.
    Several claims are placed one after the other, each in a *scenario*, which is a snapshot in which
    the earlier claims already hold their choices. The service places either all claims or none.

    A consumer may join a *group*. The *policy* of the claim keeps the *members* of this group on one host or
    on different hosts. A *topology* policy *splits* dedicated CPUs and memory over *zones*: NUMA nodes with
    all their descendant providers.

Modules
    - ``claim`` has the classes of these nouns.
    - ``placement`` decides: its pure functions find a choice for each wanted claim in the read model.
    - ``scores`` compares choices by the criteria of the claim; ``score_bounds`` computes upper bounds for
      each host, so that few hosts are searched.
    - ``topology`` splits amounts over zones; ``split_choices`` combines splits with candidates for the other
      resources.
    - ``service`` acts: it places claims and writes them (``placement.store``), and repeats both steps after a
      lost race.
    - ``degradation`` finds those amounts of reservations that their providers can no longer give.
    - ``availability`` finds the earliest windows in which a claim fits; ``host_times`` excludes impossible
      starts by sums of amounts, which ``host_rooms`` keeps for later searches. ``timetable`` caches the
      amounts over time of all providers.
    - ``joint_windows`` finds the earliest windows in which several claims fit together. ``window_search``
      answers with both kinds of windows, or with the reason if there are none.
    - ``longest_stay`` places preemptible claims where they may stay longest.
    - ``claim_context`` has what all searches use, checks names in claims, and names windows in their way.
    - ``refusal`` explains why no host has a place, and which changes would help.

A worked example
    Host ``a`` has 4 free VCPU, host ``b`` has 8. One consumer wants VCPU:4, a second consumer wants VCPU:8.
    If the search begins at ``b``, it first tries to put the first claim there, and no host is left for
    VCPU:8. So the search places the first claim on ``a``, and the second claim on ``b``. If another client
    takes one VCPU of ``b`` before the write, the transaction writes nothing, and the search runs again. The
    answer is "no candidate", with VCPU:7 as the largest amount that fits.

Invariants
    - One transaction both checks a choice and writes its allocations. The transaction checks that the
      providers of the choice have enough free. It also checks that their inventories, traits, aggregates and
      places in the tree are unchanged since the choice, and that the policy of the group allows the choice.
    - After a lost race the search runs again, on everything that was committed until then. The answer "no
      candidate" always results from a search on the current state. A claim that loses every race gets the
      answer "try again later".
    - For several wanted claims, "no candidate" means that the cloud cannot hold all of them together. If the
      search spends its budget before the answer is known, the service refuses the request because the search
      takes too long.
"""
