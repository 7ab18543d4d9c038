"""Watermarks: pure functions that decide what the agent does when a host is short of a resource.

Nouns
    A *metric* is a measured value of the host and of each guest, such as CPUs in use. A metric can have
    several *domains*, such as L3 caches, with a value for each domain. A metric on one domain is a *series*.
    A *watermark* has up to five *thresholds* for a metric, one for each *action*: switch scheduling off,
    evict, reclaim memory, throttle down, and throttle up. Below the threshold of throttling up, limits are
    raised and removed.

    Usage above a threshold is a *breach*. The *streak* of a breach is the number of successive rounds with
    this breach. Actions begin after ``for_samples`` rounds with a breach. Limits are raised again after
    ``cool_down`` seconds without a breach.

Modules
    - ``metrics`` describes metrics and orders of guests. Other packages add metrics by entry points.
      ``expressions`` has metrics that are computed from other metrics.
    - ``sections`` has the watermarks of a configuration.
    - ``breaches`` compares snapshots with the thresholds over time.
    - ``plan`` decides the actions of a round. ``state`` has the actions, and the limits and evictions of
      earlier rounds.

A worked example
    Three best-effort guests use 1, 4 and 3 cores, and each has 4 guest CPUs. A watermark throttles down above
    7 cores, so the gap is about one core. The guest with the largest use comes first. A step lowers its limit
    by a fifth, from 4 to 3.2 cores, and the host would use 7.2 cores. A second step lowers the limit to 2.56
    cores, which closes the gap. So the other two guests are not limited. After the cool-down, the limit rises
    by steps, as long as usage would stay below the threshold of throttling up. A limit that reaches all 4
    CPUs is removed.

Invariants
    - If the effect of limits can be computed, no more limits are set than are needed to close the gap. If the
      effect is unknown, each guest gets one step in a round.
    - No limit is raised in a round with a breach. A limit is raised only if the expected usage is no breach.
    - Limits are raised in the reverse of the order in which they were set.
"""
