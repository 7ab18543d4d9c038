"""The periodic work of the agent: loops that connect its parts with the pipeline.

The package is separate from :mod:`compute_agent.agent`: a loop knows the configuration in force, the worker
and the part that it drives, and nothing of sockets, signals or the assembly. Loops reach each other through
objects that are made before both, such as a :class:`~compute_agent.threads.WakeSignal` or the arbiter of
limits.

:mod:`~compute_agent.loops.reports` reports to Placement, :mod:`~compute_agent.loops.triggers` runs
watermarks and interference, :mod:`~compute_agent.loops.reclaimed` offers unused CPUs and memory,
:mod:`~compute_agent.loops.arrivals` follows starting guests, and :mod:`~compute_agent.loops.audit` compares
guests with Placement.

All loops keep three rules:

- A round that fails costs that round alone.
- A stopped loop leaves guests, limits and files as they are.
- State that must outlive the process is written before it takes effect.
"""
