"""Watermarks: pure decisions about a host that is short of something.

Nouns
    A *metric* is what is measured of the host and of each guest, as CPUs in use; where there are several
    *domains* (L3 caches) each has a value, and metric and domain together are a *series*. A *watermark* has
    up to four *thresholds* for a metric, one for each *action*: switch scheduling off, evict, throttle down,
    and throttle up, below which is given back.

    Usage above a threshold is a *breach*. The number of rounds that it has lasted is the *streak*; only after
    ``for_samples`` of them something is done, and only after ``cool_down`` seconds of quiet something is
    given back.

Who does what
    A metric is a description (``metrics``), and others than the built-in ones come through entry points.
    ``sections`` are the watermarks of a configuration, ``breaches`` compares them with a snapshot over time,
    and ``plan`` says what is to be done, by the ``state`` of what was done before.

A worked example
    Three best-effort guests use 1, 4 and 3 cores of the 4 that each may have; the watermark throttles down
    above 7. The gap is one core. The guest that uses most comes first: a step takes a fifth of its limit,
    from 4 to 3.2, which leaves the host at 7.2, and another one to 2.56. That is enough, so that the two
    others are left alone. After the cool-down without a breach the limit rises by steps, as far as what that
    leads to stays below the threshold of throttling up, and is taken away at the top.

What always holds
    - No more is done than closes the gap, where that can be computed; else one step in a round, or one guest.
    - Nothing is given back in a round with a breach, nor so far that it would cause the next one.
    - Guests get back in the reverse order what they gave.
"""
