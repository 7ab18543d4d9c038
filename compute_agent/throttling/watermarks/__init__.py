"""Watermarks: pure decisions about a host that is short of a resource.

Nouns
    A *metric* is a measured value of the host and of each guest, such as CPUs in use. If a metric has several
    *domains* (L3 caches), each has a value; metric and domain together are a *series*. A *watermark* has up
    to four *thresholds* for a metric, one for each *action*: switch scheduling off, evict, throttle down, and
    throttle up. Below the last one limits are given back.

    Usage above a threshold is a *breach*. The number of its successive rounds is the *streak*. Actions begin
    after ``for_samples`` rounds, and giving back begins after ``cool_down`` seconds without a breach.

Modules
    - ``metrics`` describes metrics and orders of guests. Other packages add metrics by entry points.
    - ``sections`` has the watermarks of a configuration.
    - ``breaches`` compares them with snapshots over time.
    - ``plan`` decides the actions of a round, by the ``state`` of earlier actions.

A worked example
    Three best-effort guests use 1, 4 and 3 cores of the 4 that each may have; the watermark throttles down
    above 7. The gap is one core. The guest that uses most comes first: a step takes a fifth of its limit,
    from 4 to 3.2, which leaves the host at 7.2. A second step lowers the limit to 2.56. The second step is
    enough, and the two others are left alone. After the cool-down without a breach the limit rises by steps,
    as long as usage would stay below the threshold of throttling up. At its maximum the limit is removed.

What always holds
    - Actions stop as soon as the gap is closed, if this can be computed; otherwise a round has one step, or
      one guest.
    - No limit is raised in a round with a breach, nor so far that it would cause the next breach.
    - Limits are removed in the reverse order.
"""
