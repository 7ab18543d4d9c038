"""The controllers of the agent: each sets one kind of kernel settings to the values that the worker wants.

Parts:

- :mod:`~compute_agent.controllers.base`: the interface, and functions that controllers share.
- :mod:`~compute_agent.controllers.cpu`: pins guests, and sets their CPU weight and quota.
- :mod:`~compute_agent.controllers.memory`: binds and limits memory.
- :mod:`~compute_agent.controllers.blockio`: limits block devices.
- :mod:`~compute_agent.controllers.resctrl`: divides cache ways and memory bandwidth.
- :mod:`~compute_agent.controllers.emulator`: moves emulator threads off dedicated CPUs.
- :mod:`~compute_agent.controllers.isolation`: keeps interrupts and work of the kernel off CPUs.
- :mod:`~compute_agent.controllers.realtime` and :mod:`~compute_agent.controllers.core_cookies`: set the
  schedules and the core scheduling cookies of threads.
- :mod:`~compute_agent.controllers.cpu_class`: sets frequencies and idle states of CPUs.
  :mod:`~compute_agent.controllers.cpu_class_plan` decides which values it writes.

Order of calls: after an event that changes a guest, the worker's enforcer calls ``sync`` of each controller
with the targets of all guests. After that, it calls ``apply`` for each guest with pending changes. The
periodic reconcile calls ``describe_drift`` before ``apply``. A dry run calls only ``plan_changes``, and a
release of the host calls only ``release``. ``make_controllers`` in
:mod:`compute_agent.agent.configured_controllers` decides the order of controllers.

Most controllers change the settings of a guest through the driver. A controller itself writes schedules and
cookies of threads, and files that concern the whole host. No controller imports another one, and no module of
``pipeline`` imports this package.
"""
