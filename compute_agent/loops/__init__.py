"""The periodic work of the agent. Each loop is a thread that runs one part of the agent in rounds.

A loop uses the configuration in force, the worker of the pipeline, and the objects that do the loop's work.
No loop uses sockets, signals or the code that makes all objects; these are in :mod:`compute_agent.agent`. Two
loops communicate through an object that is made before these loops, such as a
:class:`~compute_agent.threads.WakeSignal` or the arbiter of limits.

:mod:`~compute_agent.loops.reports` reports to Placement, :mod:`~compute_agent.loops.triggers` runs
watermarks and interference, :mod:`~compute_agent.loops.reclaimed` offers unused CPUs and memory,
:mod:`~compute_agent.loops.arrivals` follows starting guests, and :mod:`~compute_agent.loops.audit` compares
guests with Placement.

All loops keep three rules:

- A failure ends a round of a loop, but not the loop.
- A loop that is stopped changes no guests, limits or files.
- State that must outlive the process is written before it takes effect.
"""
