"""Throttling: which guests give way, how far, and how they get everything back.

Nouns
    Two *triggers* decide: *watermarks*, when the host as a whole is short of something, and *interference*,
    when one guest disturbs another one. Each has a room of pure functions (``watermarks``, ``interference``):
    frozen values in, actions out. Guests are throttled with a *lever* (CPU quota, cache ways ...); a lever on
    a domain of the host (an L3 cache) is a *control*, and a guest's *allotment* is the part of it that it may
    use without a limit.

    One *executor* carries out what triggers decide, and shows what sections in *preview* would do. One
    *arbiter* has the limits that both ask for, of which the lowest is in force. One *state file* has all that
    outlives the agent, and one *telemetry* reports every action: log, event, metric.

Who does what
    ``samplers`` read files once a round into a snapshot of the host, or a sample of all guests. ``triggers``
    hand that to the pure functions, with the state of the round before. ``executor`` saves what would be
    taken, acts through ``arbiter`` and ``evictions``, and reports through ``telemetry``. ``settings`` is the
    configuration, ``levers`` the arithmetic of limits, ``actions`` the vocabulary of plans.

A worked example
    The host uses 7.5 of the 7 cores at which ``[watermark:cpu]`` throttles; a snapshot says so, and the plan
    is to take the largest best-effort guest from 4 to 3.2 cores. The executor writes that limit to the state
    file, asks the arbiter, and the arbiter the worker. Meanwhile interference wants the same guest at 2.5
    cores for the sake of a neighbour: 2.5 are in force. When interference gives its limit back, 3.2 are; when
    the host is calm for the cool-down, the guest has all of its allotment again, and the file is empty.

What always holds
    - Protected guests (with dedicated CPUs, or of a class above ``[qos] highest_class``) are never acted on.
    - No guest is left with less than ``[qos] min_share`` of its allotment by a step.
    - What is taken is in the state file before it is done. What is given back is there until it is done.
    - Whatever was taken is given back in the end: after a crash, and after its section is gone, too.
    - A section in preview changes nothing but logs, events and metrics.
"""
