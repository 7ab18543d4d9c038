"""The drivers of guests that are containers of Podman or Docker. The engine must run as root.

Terms: the *engine* is Podman or Docker, which offers the API of the Docker Engine on a UNIX socket. A
container with the label ``compute-agent.guest=true``, or with a name that matches the option ``guest_names``,
is a guest while it runs. A *run* is the time from the start of a container to its end. With the option
``[podman] pods = pod``, a pod of Podman can be one guest. The pod's *infra container*, which has the labels
of the pod and runs as long as the pod does, represents the pod.

``driver.py`` is the driver, which extends :mod:`compute_agent.drivers.foreign`; it writes values to control
groups and restores the old ones. ``table.py`` finds guests. Pure functions make the decisions:
``container_state.py`` parses labels and the answers of the engine. ``engine.py`` calls the engine, and
follows its events.

The agent sets limits by writing to control groups, and not through the API, for these reasons. The API has
only the call ``POST /containers/ID/update`` for limits, and Podman 4.3 (Debian 12) lacks this call. The call
cannot restore an empty set of CPUs, and it cannot set ``memory.high``, ``memory.low`` and ``cpu.idle``.
Docker keeps the values of such a call for the next start of the container, so the values would outlive the
agent's decisions. So the agent writes to the control group of the container. This group ends with each run of
the container, and so do all values of the agent. The group of a pod outlives the runs of the pod, so the
agent restores the old values of the group when the pod stops.

Example: the container ``db`` has the label ``compute-agent.guest=true``, and the agent gives it CPUs 4-7. The
agent records that ``AllowedCPUs`` was empty, and writes 4-7 to ``cpuset.cpus`` of
``machine.slice/libpod-ID.scope``. When the container ends, the agent removes the record.

Invariants: the agent never starts or restarts a container. Before the agent changes a setting of a guest, it
saves the old value on disk. No call waits longer than ``engine.CALL_SECONDS`` for the engine, apart from the
time that a stopping container gets. Labels that come from the image have no effect.
"""
