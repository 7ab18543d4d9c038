"""The process of the agent: its assembly, main thread, sockets, signals and reloads.

This package creates, starts and queries the loops of :mod:`compute_agent.loops`. The loops import nothing of
this package, so that they can be read, created and tested without a process.

- :mod:`~compute_agent.agent.assembly` makes all parts in one constructor, from top to bottom. New readers
  should start there.
- :mod:`~compute_agent.agent.service` is the agent as a whole: start, listeners, main thread and stop.
- :mod:`~compute_agent.agent.api` answers the requests of the socket, with the parts that the assembly made.
- :mod:`~compute_agent.agent.configured_host` makes the host state from a configuration,
  :mod:`~compute_agent.agent.configured_controllers` makes the controllers, and
  :mod:`~compute_agent.agent.reload` replaces both while guests run.
- :mod:`~compute_agent.agent.dry_run` lists the changes of a start, and :mod:`~compute_agent.agent.release`
  undoes these changes; both modules use all controllers.
- :mod:`~compute_agent.agent.documents` builds the JSON of ``status``, ``guest list``, ``watermark list`` and
  ``resctrl groups``.

Example: ``kill -HUP`` puts a signal into the queue of :class:`~compute_agent.agent.service.HostAgent`. The
main thread then calls the reloader, which reads the files. A configuration that is refused changes nothing.
If the configuration is accepted, the worker gets the new host state and controllers. Then
:class:`~compute_agent.loops.base.ConfigurationInForce` passes the configuration to each loop, and the loop
uses the configuration from its next round on.

Invariants: an object is made after the objects that it uses. Before start(), only threads of the driver run.
An agent that refuses to start has changed only its state folder, and has mounted resctrl if configured.
"""
