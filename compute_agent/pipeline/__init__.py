"""From events to settings of the kernel: one queue, one worker, a cache of guests and its state file.

A driver, a report or a command puts an event into the queue (:mod:`~compute_agent.pipeline.events`). The
worker (:mod:`~compute_agent.pipeline.worker`) takes one at a time, updates the cache
(:mod:`~compute_agent.pipeline.guest_cache`), places guests by the policy
(:mod:`~compute_agent.pipeline.placer`), marks the controllers that have work to do, runs them
(:mod:`~compute_agent.pipeline.enforcer`), and saves the state (:mod:`~compute_agent.pipeline.state`).

Only the worker changes the cache, and it sends no request to Placement: events carry what they need.
"""
