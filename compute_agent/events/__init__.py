"""Decisions of the agent with their reasons, for the log and for ``compute-agent event list``.

An *event* is one decision that an operator may ask about later: a guest was placed, moved, refused, repaired,
throttled or evicted. The events of :mod:`compute_agent.pipeline` are another thing: the input of its worker.

Deciding code calls a *recorder*, which logs the sentence and hands the event on. The *store* keeps the newest
events in two files. Recording never waits: a full disk costs events, never a decision.
"""
