"""Throttling: which guests give way, how far, and how they get everything back.

Nouns
    Two *triggers* decide. *Watermarks* act when the host as a whole is short of something, *interference*
    when one guest disturbs another one. Each has a room of pure functions (``watermarks``, ``interference``):
    frozen values in, actions out. A *lever* is a way to limit a guest (CPU quota, cache ways ...). A
    *control* is a lever on one domain of the host, such as an L3 cache. A guest's *allotment* is the part of
    a control that it may use without a limit.

    One *executor* carries out decisions of triggers, and reports the actions that sections in *preview* would
    take. One *arbiter* has the limits that both triggers request; the lowest is in force. One *state file*
    has all that outlives the agent. One *telemetry* reports every action: log, event, metric.

Modules
    - ``samplers`` read files once a round, into a snapshot of the host or a sample of all guests.
    - ``triggers`` hand that to the pure functions, with the state of the round before.
    - ``executor`` saves what would be taken, acts, and reports through ``telemetry``.
    - ``arbiter`` and ``evictions`` are the ways to the worker, the driver and Placement.
    - ``settings`` is the configuration, ``levers`` the arithmetic of limits, ``actions`` the terms of plans.

A worked example
    The host uses 7.5 cores, and ``[watermark:cpu]`` throttles above 7. The plan takes the largest best-effort
    guest from 4 to 3.2 cores. The executor writes that limit to the state file and asks the arbiter. The
    arbiter asks the worker. Meanwhile interference wants the same guest at 2.5 cores for the sake of a
    neighbour: 2.5 are in force. When interference gives its limit back, 3.2 are in force. When the host has
    been calm for the cool-down, the guest has all of its allotment again, and the file has no limit.

What always holds
    - Protected guests (with dedicated CPUs, or of a class above ``[qos] highest_class``) are never acted on.
    - No step leaves a guest with less than ``[qos] min_share`` of its allotment.
    - What is taken is in the state file before it is done. What is given back is there until it is done.
    - Whatever was taken is given back in the end, after a crash or the removal of its section, too.
    - A section in preview changes nothing but logs, events and metrics.
"""
