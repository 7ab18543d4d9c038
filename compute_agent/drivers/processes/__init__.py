"""Process guests: programs that the agent starts, or running processes that it adopts.

Parts: :mod:`~compute_agent.drivers.processes.driver` is the driver;
:mod:`~compute_agent.drivers.processes.launch` starts and checks processes;
:mod:`~compute_agent.drivers.processes.process_table` knows the guests that run and waits for their ends;
:mod:`~compute_agent.drivers.processes.records` stores a record of each guest on disk;
:mod:`~compute_agent.drivers.processes.guest_cgroup` compares the cgroup of a guest with its settings.

Order of calls at a start: ``create_guest`` makes a held process, records it and moves it into its cgroup; the
worker pins it; ``release`` lets it run. A crash in between leaves no running program: the held process ends
with the agent.
"""
