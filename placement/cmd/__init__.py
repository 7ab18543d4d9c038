"""The command line programs: ``placement-api``, ``placement-manage`` and ``placement-status``.

Modules
    - ``api`` starts the service under the bundled web server.
    - ``manage`` has the commands for the database and for windows; ``report`` has one further command of
      ``placement-manage``. Extensions can register more commands.
    - ``status`` checks whether this version of the service can start.
    - ``common`` has the parts that several commands share.

The order of calls
    A command reads the configuration (``placement.conf``) and checks it. Afterwards, the command calls the
    package that does the work: ``server`` and ``api`` serve requests, ``maintenance`` and ``db`` work on the
    database. An error that an operator can remedy is printed as one line, and the exit status is then 1 (for
    ``placement-status`` it is 255).

Imports
    Only entry points in ``setup.cfg`` and the commands of extensions import this package. This package is
    allowed to import all packages of the service.
"""
