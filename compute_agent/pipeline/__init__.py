"""The pipeline turns events into kernel settings, by a queue, a worker, a cache of guests and a state file.

Drivers, reports, commands, throttling and loops put events into the queue
(:mod:`~compute_agent.pipeline.events`). The worker (:mod:`~compute_agent.pipeline.worker`) then does the
following for one event at a time:

1. The worker updates the cache (:mod:`~compute_agent.pipeline.guest_cache`). The module
   :mod:`~compute_agent.pipeline.lifecycle` does this for starts and ends of guests, and for the periodic
   comparison. :mod:`~compute_agent.pipeline.guest_settings` resolves the settings of each guest.
2. The worker places guests by the policy (:mod:`~compute_agent.pipeline.placer`), on the host that
   :mod:`~compute_agent.pipeline.host_state` describes, and marks the controllers with pending work.
3. The worker runs these controllers (:mod:`~compute_agent.pipeline.enforcer`).
4. The worker saves the state (:mod:`~compute_agent.pipeline.state`).

Invariants: only the worker changes the cache. The worker sends no request to Placement: events carry the
allocations. A controller that fails stays pending and is called again after the next event.

``agent``, ``cmd``, ``loops``, ``throttling`` and ``usage`` are allowed to import this package. The package
imports controllers, drivers and policies, and frozen dataclasses of other packages, such as ``report``. The
module :mod:`~compute_agent.pipeline.metrics` has the metrics of the worker.
"""
