"""Events: decisions of the agent with their reasons, for the log and for ``compute-agent event list``.

An *event* is one decision that an operator perhaps asks about later: a guest was placed, moved, refused,
repaired, throttled or evicted. The events of :mod:`compute_agent.pipeline` are something else: the input of
the pipeline's worker.

Code that decides calls a *recorder*, which logs a sentence and passes the event to a queue. The *store* keeps
the newest events in two files. Recording never waits: if the disk is full, events are lost, but no decision
is delayed.
"""
