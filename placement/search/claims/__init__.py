"""Claims in one call: places the requests of ``POST /ext/v1/claims``, and writes their allocations.

Nouns
    A *wanted claim* is a request for candidates, and the consumer that shall hold one. A *choice* is a
    candidate that serves it; its *host* is the root of the tree where the candidate is anchored. Several
    wanted claims are *placed* one after the other. Each gets a *scenario*, a snapshot in which the claims
    before it hold their choices. Either all are placed, or none.

    A consumer may join a *group*. The *policy* of the claim keeps its *members* on one host or apart. A
    *topology* *splits* dedicated CPUs and memory over *zones*: NUMA nodes with all providers below them.

Modules
    - ``claim`` has the nouns.
    - ``placement`` decides: pure functions over the read model find a choice for each wanted claim.
    - ``scores`` compares choices by the order of the claim; ``score_bounds`` has upper bounds for each host,
      so that few hosts are searched.
    - ``topology`` splits amounts over zones; ``split_choices`` combines splits with candidates for the rest.
    - ``service`` acts: it places claims, writes them (``placement.store``), and repeats both after a lost
      race.
    - ``refusal`` explains why no host has a place, and which changes would help.

A worked example
    Host ``a`` has VCPU 4, host ``b`` VCPU 8. One consumer wants VCPU:4, a second VCPU:8. If the search
    begins at ``b``, the first claim goes there, and no host is left for VCPU:8. So the first goes to ``a``,
    and the second to ``b``. If another claim takes one VCPU of ``b`` meanwhile, the transaction writes
    nothing, and the search runs again. The answer is "no candidate", with VCPU:7 as the largest amount.

Invariants
    - One transaction checks a choice and writes it. The providers of the choice have enough free, and are
      unchanged since the choice (inventories, traits, aggregates and place in the tree); the policy of its
      group allows it.
    - After a lost race the search runs again, on all that was committed until then. "No candidate" always
      results from such a search. A claim that loses every race gets "try again later".
    - For several wanted claims, "no candidate" means that there is no way to place them together. If the
      budget does not suffice to find out, the request is refused as too long a search.
"""
