"""Process guests: programs that the agent starts, or running processes that it adopts.

Parts:

- :mod:`~compute_agent.drivers.processes.driver`: the driver.
- :mod:`~compute_agent.drivers.processes.launch`: starts processes, and checks processes before their
  adoption.
- :mod:`~compute_agent.drivers.processes.process_table`: the running guests, and the watch for their ends.
- :mod:`~compute_agent.drivers.processes.records`: a record of each guest on disk, and its log.
- :mod:`~compute_agent.drivers.processes.guest_cgroup`: compares the cgroup of a guest with its settings.

Order of calls at a start: ``create_guest`` starts a held process, moves it into its cgroup and records it.
The agent's worker pins the held process. ``release`` lets it run the guest's program. If the agent crashes
before ``release``, no program is left running: the held process ends with the agent.
"""
