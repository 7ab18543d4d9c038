"""What the agent decided, of whom and why: told to the log, and kept for ``compute-agent event list``.

An *event* is one decision that somebody may ask about later: a guest was placed, moved, refused, repaired,
throttled, evicted. Not to be taken for the events of :mod:`compute_agent.pipeline`, which are what its worker
is told. Whoever decides tells a *recorder*, which logs the sentence and hands the event on; the *store* keeps
the newest in two files. Nobody waits for that: a full disk costs events, never a decision.
"""
