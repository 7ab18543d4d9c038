"""Watermarks: pure decisions about a host that is short of something.

Nouns
    A *metric* is measured of the host and of each guest, as CPUs in use. Where there are several *domains*
    (L3 caches) each has a value; metric and domain together are a *series*. A *watermark* has up to four
    *thresholds* for a metric, one for each *action*: switch scheduling off, evict, throttle down, and
    throttle up. Below the last one limits are given back.

    Usage above a threshold is a *breach*. The number of rounds that it has lasted is the *streak*. Only after
    ``for_samples`` rounds something is done, and only after ``cool_down`` seconds of quiet something is given
    back.

Modules
    - ``metrics`` describes metrics and orders of guests. Others than the built-in ones come by entry points.
    - ``sections`` has the watermarks of a configuration.
    - ``breaches`` compares them with snapshots over time.
    - ``plan`` says what is to be done, by the ``state`` of what was done before.

A worked example
    Three best-effort guests use 1, 4 and 3 cores of the 4 that each may have; the watermark throttles down
    above 7. The gap is one core. The guest that uses most comes first: a step takes a fifth of its limit,
    from 4 to 3.2, which leaves the host at 7.2. Another one takes it to 2.56. That is enough, and the two
    others are left alone. After the cool-down without a breach the limit rises by steps, as long as usage
    would stay below the threshold of throttling up. At the top it is taken away.

What always holds
    - No more is done than closes the gap, where that can be computed; else one step in a round, or one guest.
    - Nothing is given back in a round with a breach, nor so far that it would cause the next one.
    - Guests get back in the reverse order what they gave.
"""
