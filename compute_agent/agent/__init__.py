"""The agent's process: its assembly, threads, sockets, signals and reloads.

Start at :mod:`compute_agent.agent.service`, which builds the agent from top to bottom. A host is described by
:mod:`~compute_agent.agent.configured_host`; :mod:`~compute_agent.agent.reloading` replaces that description
    while guests run. :mod:`~compute_agent.agent.api` has the methods of the UNIX socket,
:mod:`~compute_agent.agent.dry_run` says what would change, and :mod:`~compute_agent.agent.release` gives
everything back.
"""
