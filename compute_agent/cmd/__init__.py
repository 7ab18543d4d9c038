"""The command line, ``compute-agent``.

The first word of a command selects the module of the command. So a command line imports only one or two
modules of this package; the import of all modules would take longer than most commands run.
:mod:`compute_agent.cmd.main` has the list of first words, and imports the modules of a word when the word is
used. :mod:`compute_agent.cmd.base` has the base classes of commands.

Most commands send one request to the running agent: their classes declare its name (``METHOD``), its
parameters and the columns of the answer. Commands about the host, the configuration and stored files work
without a running agent. No other package imports this package.
"""
