"""The command line programs: ``placement-api``, ``placement-manage`` and ``placement-status``.

Modules
    - ``api`` starts the service under the bundled web server.
    - ``manage`` has the commands for the database; ``notify`` and ``report`` have two further commands of
      ``placement-manage``. Extensions may register more of them.
    - ``status`` checks whether this version of the service can start.
    - ``common`` has the parts that several commands share.

The order of calls
    A command reads the configuration (``placement.conf``) and checks it. After the checks, a command calls
    the package that does the work: ``server`` and ``api`` to serve requests, ``maintenance`` and ``db`` for
    the database. An error that an operator can remedy is printed as one line, and the exit status is 1
    (255 of ``placement-status``).

Imports
    Only entry points in ``setup.cfg`` and the commands of extensions import this package. This package may
    import every package of the service.
"""
