"""Watermarks: which guests give way when the host is overloaded, how far, and how they get everything back.

Nouns
    A *metric* is what is measured of the host and of each guest, as CPUs in use; where there are several
    *domains* (L3 caches) each has a value, and metric and domain together are a *series*. A *watermark* has
    up to four *thresholds* for a metric, one for each *action*: switch scheduling off, evict, throttle down,
    and throttle up, below which is given back. A *lever* is what guests are throttled with; a *knob* is a
    lever on a domain, and a guest's *entitlement* what it may have of it without a limit.

    Usage above a threshold is a *breach*. How many rounds it has lasted is the *streak*; only after
    ``for_samples`` of them something is done, and only after ``cool_down`` seconds of quiet something is
    given back. What must outlive the agent (limits, evictions, the switch) is the *state*.

Who does what
    Files are read once a round (``sampler``, ``sources``) into a frozen ``snapshot``; it is compared over
    time (``streaks``) with the ``watermarks``; what is to be done is a pure function of both (``plan``,
    ``restore``); the ``executor`` does it. A metric is a description (``metrics``), and others than the
    built-in ones come through entry points. ``classes`` say who gives way first and who never does,
    ``annotation`` what a guest asks for.

A worked example
    Three best-effort guests use 1, 4 and 3 cores of the 4 that each may have; the watermark throttles down
    above 7. The gap is one core. The guest that uses most comes first: a step takes a fifth of its limit,
    from 4 to 3.2, which leaves the host at 7.2, and another one to 2.56. That is enough, so that the two
    others are left alone. After the cool-down without a breach the limit rises by steps, as far as what that
    leads to stays below the threshold of throttling up, and is taken away at the top.

What always holds
    - Protected guests (with dedicated CPUs, or of a class above ``highest_class``) are never acted on.
    - No more is done than closes the gap, where that can be computed; else one step in a round, or one guest.
    - No guest is left with less than ``min_share`` of its entitlement.
    - Nothing is given back in a round with a breach, nor so far that it would cause the next one.
    - Whatever was taken is given back in the end, in the reverse order, also after a crash, and also when
      the watermark was removed meanwhile.
"""
