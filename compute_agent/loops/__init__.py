"""The periodic work of the agent, and the loops that connect it with the pipeline.

A room of its own beside :mod:`compute_agent.agent`: a loop knows the configuration in force, the worker and
the part that it drives, and nothing of sockets, signals or the assembly. Loops reach each other through
objects that are made before both, such as a :class:`~compute_agent.threads.WakeSignal` or the arbiter of
limits.

:mod:`~compute_agent.loops.reporting` reports to Placement, :mod:`~compute_agent.loops.throttling` has
watermarks and interference decide, :mod:`~compute_agent.loops.reclaimed` offers unused CPUs and memory,
:mod:`~compute_agent.loops.arrivals` follows starting guests, and :mod:`~compute_agent.loops.audit` compares
guests with Placement.

Always: a round that fails costs that round; a loop that is stopped leaves guests, limits and files as they
are; what must outlive the process is kept before it takes effect.
"""
