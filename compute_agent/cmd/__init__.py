"""The command line, ``compute-agent``.

A command is in the module of its first word, even if it is short. So a command line loads one module of this
package. The import of all of them takes longer than most commands run. ``main`` has the words, and imports a
module when its word is used. ``base`` has the base classes of commands.

Most commands send one request to the running agent (``ask_daemon``). Commands about the host, the
configuration and kept files work without it. No other package imports this one.
"""
