"""The command line, ``compute-agent``.

Each command is in a module that is named after its first word, so a command line imports one module of this
package. The import of all modules takes longer than most commands run. :mod:`compute_agent.cmd.main` knows
the first words, and imports the module of a word when it is used. :mod:`compute_agent.cmd.base` has the base
classes of commands.

Most commands send one request to the running agent (``ask_daemon``). Commands about the host, the
configuration and stored files work without a running agent. No other package imports this one.
"""
