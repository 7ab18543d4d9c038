"""The agent's process: its assembly, main thread, sockets, signals and reloads.

The package is separate from :mod:`compute_agent.loops`, so that the loops can be read, created and tested
without a process. The loops import nothing of this package; this package creates them, starts them and
queries them.

- :mod:`~compute_agent.agent.assembly` makes all parts in one function, from top to bottom. Start there.
- :mod:`~compute_agent.agent.service` is the agent as a whole: start, main thread, stop, and what the socket
  asks.
- :mod:`~compute_agent.agent.configured_host` makes a host and its controllers from a configuration, and
  :mod:`~compute_agent.agent.reload` replaces these while guests run.
- :mod:`~compute_agent.agent.dry_run` lists the changes of a start, :mod:`~compute_agent.agent.release` undoes
  them; both ask all controllers.
- :mod:`~compute_agent.agent.documents` says what is, for ``status``, ``guest list``, ``watermark list`` and
  ``resctrl groups``.

Example: ``kill -HUP`` puts a signal into :class:`~compute_agent.agent.service.ReceivedSignals`. The main
thread has the reloader read the files. A configuration that is refused changes nothing. Otherwise the worker
gets the new host and controllers, then :class:`~compute_agent.loops.base.ConfigurationInForce` lets each loop
use it from its next round on.

Always: nothing is made before what it needs; no thread but the driver's runs before start(); a refused start
leaves the host as it was.
"""
