"""The drivers of guests that are containers of Podman or Docker, which root runs.

Terms: the *engine* is Podman or Docker. Both speak the API of the Docker Engine over a UNIX socket. A
container with the label ``compute-agent.guest=true``, or with a name of ``guest_names`` in the options, is a
guest while it runs. A *run* is the time from the start of a container to its end. With ``[podman] pods =
pod``, a pod of Podman can be one guest. Its *infra container*, which has the labels of the pod and runs as
long as the pod does, represents it.

``driver.py`` is the driver, on the base of :mod:`compute_agent.drivers.foreign`. ``table.py`` finds guests,
``editor.py`` writes values to control groups and gives them back. Pure functions decide: ``labels.py`` (the
settings) and ``container_state.py`` (answers of the engine). ``engine.py`` calls the engine, and
``event_stream.py`` follows its events.

Why control groups: the API could set limits by ``POST /containers/ID/update``. Podman 4.3 (Debian 12) does
not have this call. The call cannot give back an empty set of CPUs. It has no ``memory.high``, ``memory.low``
and ``cpu.idle``. Docker keeps its values for the next start of the container, where they would outlive the
agent's decisions. So the agent writes to the group of the container. The group ends with each run, and with
it all values of the agent. The group of a pod outlives its runs, so the agent gives its values back when the
pod stops.

Example: container ``db`` has ``compute-agent.guest=true`` and is given CPUs 4-7. The agent notes
``AllowedCPUs`` as empty in its record, and writes 4-7 to ``cpuset.cpus`` of
``machine.slice/libpod-ID.scope``. When the container ends, the agent removes the record.

Invariants: the agent starts and restarts no container. A value of the guest's own is on disk before the agent
changes it. No call waits longer than ``engine.CALL_SECONDS`` for the engine, apart from the time that a
container has to stop. Labels of the image decide nothing.
"""
