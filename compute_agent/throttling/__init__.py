"""Throttling: limits of guests in favour of others, and their removal.

Nouns
    Two *triggers* decide. *Watermarks* act when the whole host is short of a resource, *interference* when
    one guest disturbs another one. Each has a package of pure functions (``watermarks``, ``interference``)
    from frozen values to actions. A *lever* is a way to limit a guest (CPU quota, cache ways ...). A
    *control* is a lever on one domain of the host, such as an L3 cache. A guest's *allotment* is the part of
    a control that it may use without a limit.

    One *executor* carries out decisions of triggers, and reports the actions of sections in *preview* without
    taking them. One *arbiter* has the limits that both triggers request; the lowest is in force. One *state
    file* has the data that outlive the agent. One *telemetry* reports every action: log, event, metric.

Modules
    - ``samplers`` read files once a round, into a snapshot of the host or a sample of all guests.
    - ``triggers`` pass these values to the pure functions, with the state of the round before.
    - ``executor`` saves the planned limits, acts, and reports through ``telemetry``.
    - ``arbiter`` and ``evictions`` call the worker, the driver and Placement.
    - ``settings`` is the configuration, ``levers`` the arithmetic of limits, ``actions`` the terms of plans.

A worked example
    The host uses 7.5 cores, and ``[watermark:cpu]`` throttles above 7. The plan takes the largest best-effort
    guest from 4 to 3.2 cores. The executor writes that limit to the state file and asks the arbiter. The
    arbiter asks the worker. Meanwhile interference limits the same guest to 2.5 cores in favour of a
    neighbour: 2.5 are in force. When interference removes its limit, 3.2 are in force. When the host has been
    calm for the cool-down, the guest has all of its allotment again, and the file has no limit.

What always holds
    - No action concerns a protected guest (with dedicated CPUs, or of a class above ``[qos] highest_class``).
    - No step leaves a guest with less than ``[qos] min_share`` of its allotment.
    - The state file has a limit before it is set, and keeps it until it is removed.
    - Each limit is removed in the end, also after a crash or the removal of its section.
    - A section in preview changes nothing but logs, events and metrics.
"""
