"""The commands: ``placement-api``, ``placement-manage`` and ``placement-status``.

Modules
    - ``api`` starts the service under the bundled web server.
    - ``manage`` has the commands on the database. Extensions register further ones.
    - ``status`` checks whether the service can start with this version.
    - ``common`` has the parts that several commands share.

The order of calls
    A command makes a configuration (``placement.conf``) and checks it. Then it calls the package that does
    the work: ``server`` and ``api`` to serve, ``maintenance`` and ``db`` for the database. An error that an
    operator can remedy is printed as one line, and the exit status is 1.

Imports
    Nothing imports this package, apart from entry points in ``setup.cfg`` and the commands of extensions. The
    package may import every package of the service.
"""
