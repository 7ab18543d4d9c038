"""Watermarks: pure decisions about a host that is short of a resource.

Nouns
    A *metric* is a measured value of the host and of each guest, such as CPUs in use. If a metric has several
    *domains* (L3 caches), each domain has a value; metric and domain together are a *series*. A *watermark*
    has up to four *thresholds* for a metric, one for each *action*: switch scheduling off, evict, throttle
    down, and throttle up. Below the threshold of throttling up, limits are raised and removed.

    Usage above a threshold is a *breach*. Its *streak* is the number of successive rounds with the breach.
    Actions begin after ``for_samples`` rounds. Limits are raised again after ``cool_down`` seconds without a
    breach.

Modules
    - ``metrics`` describes metrics and orders of guests. Other packages add metrics by entry points.
    - ``sections`` has the watermarks of a configuration.
    - ``breaches`` compares snapshots with the thresholds over time.
    - ``plan`` decides the actions of a round, by the ``state`` of earlier actions.

A worked example
    Three best-effort guests use 1, 4 and 3 cores, and each has 4 virtual CPUs. A watermark throttles down
    above 7 cores, so the gap is one core. The guest with the largest use comes first: a step takes a fifth of
    its limit, from 4 to 3.2, which leaves the host at 7.2. A second step lowers the limit to 2.56, which
    closes the gap, so the other two guests keep their CPUs. After the cool-down, the limit rises by steps, as
    long as usage would stay below the threshold of throttling up. A limit that reaches all 4 CPUs is removed.

What always holds
    - Throttling stops as soon as the gap is closed, if this can be computed; otherwise a guest gets one step
      in a round.
    - No limit is raised in a round with a breach, and none so far that the expected usage is a breach.
    - Limits are removed in the reverse order.
"""
