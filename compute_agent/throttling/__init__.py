"""The agent limits (throttles) guests to help other guests, and removes the limits later.

Nouns
    Two *triggers* decide about limits. *Watermarks* act when the whole host is short of a resource, and
    *interference* acts when one guest disturbs another guest. Each trigger has a package of pure functions
    (``watermarks``, ``interference``), which compute actions from frozen values. A *lever* is a way to limit
    a guest, such as a CPU quota or cache ways. A *control* is a lever on one part of the host (domain), such
    as an L3 cache. The *allotment* of a guest is the amount of a control that the guest can use while it is
    not limited.

    The *executor* carries out the decisions that the triggers make. If a section is in *preview*, the
    executor only reports its actions. The *arbiter* has the limits that each trigger requests, and the lowest
    limit is in force. The *state file* has the data that a restart of the agent must not lose. The
    *telemetry* reports every action in the log, as an event and as a metric.

Modules
    - ``samplers`` read files once a round, and return a snapshot of the host or a sample of all guests.
    - ``triggers`` pass the snapshots and samples to the pure functions, together with the state of the
      previous round.
    - ``executor`` saves the planned limits, acts, and reports through ``telemetry``.
    - ``arbiter`` and ``evictions`` call the worker, the driver and Placement. ``guest_command`` runs
      the operator's programs, and ``state_file`` saves the state.
    - ``settings`` has the configuration, and ``levers`` computes limits.

A worked example
    The host uses 7.5 cores, and ``[watermark:cpu]`` throttles above 7 cores. The plan lowers the limit of the
    largest best-effort guest from 4 to 3.2 cores. The executor writes the limit to the state file, and passes
    it to the arbiter, which passes it to the worker. Later, interference limits the same guest to 2.5 cores
    to protect a neighbour, so 2.5 cores are in force. When interference removes its limit, 3.2 cores are in
    force again. When usage has been below the threshold for the option ``cool_down``, the limit is raised by
    steps. At the guest's allotment, the limit is removed and deleted from the state file.

Invariants
    - No trigger limits or evicts protected guests: preserved guests, guests with dedicated CPUs, and guests
      of unknown classes or of a class above ``[qos] highest_class``.
    - No step leaves a guest with less than ``[qos] min_share`` of its allotment.
    - A limit is in the state file before the kernel gets it, and stays in the file until it is removed.
    - Each limit is removed at some time, even after a crash of the agent, or after its section was removed.
    - A section in preview only writes logs, events and metrics.
"""
