"""Controllers: each keeps one part of the kernel's settings as the worker's targets say.

Parts:

- :mod:`~compute_agent.controllers.base`: the interface, and functions that controllers share.
- :mod:`~compute_agent.controllers.cpu`: pins guests, and sets their CPU weight and quota.
- :mod:`~compute_agent.controllers.memory`: binds and limits memory.
- :mod:`~compute_agent.controllers.blockio`: limits block devices.
- :mod:`~compute_agent.controllers.resctrl`: divides cache ways and memory bandwidth.
- :mod:`~compute_agent.controllers.cpu_class`: sets frequencies and idle states of CPUs.
  :mod:`~compute_agent.controllers.cpu_class_plan` and :mod:`~compute_agent.controllers.idle_cores` decide.

Order of calls: after each event the worker's enforcer calls ``sync`` of every controller with all targets,
and then ``apply`` for each guest with something pending. Reconcile adds ``describe_drift`` before ``apply``.
Dry run calls ``plan_changes`` alone, release calls ``release`` alone. The order of controllers is that of
``make_controllers`` in :mod:`compute_agent.agent.configured_host`.

A controller asks a driver for everything that belongs to a guest, and writes host-wide files itself. A
controller does not import another one, and nothing below ``pipeline`` imports this package.
"""
