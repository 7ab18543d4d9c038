"""The periodic work of the agent, and the loops that connect it with the pipeline.

:mod:`~compute_agent.loops.reporting` reports to Placement, :mod:`~compute_agent.loops.throttling` has
watermarks and interference decide, :mod:`~compute_agent.loops.reclaimed` offers unused CPUs and memory,
:mod:`~compute_agent.loops.arrivals` follows starting guests, and :mod:`~compute_agent.loops.audit` compares
guests with Placement.
"""
