"""Moves a cloud from OpenStack Placement to this service, and back.

An *import* copies the database of OpenStack Placement into an empty database of this service. An *adoption*
renames the tables of OpenStack Placement inside their database, creates our tables beside them, and copies
the content of the old tables into ours. An *abandonment* gives an adopted database back to OpenStack
Placement, with or without the changes since the adoption. Each of the three is a *move*.

``content`` reads databases of both schemas into one format, in which their contents are counted and compared.
``stock_database`` reads the tables of OpenStack Placement, and ``stock_writer`` writes them. ``importer``
copies rows into our tables, and ``relations`` locks, renames and removes tables.

A move that fails leaves the database unchanged. PostgreSQL and SQLite execute a move in one transaction.
MySQL commits each change of a schema at once. So a row in a MySQL database records the progress of an
adoption or abandonment. If a crash interrupts the move on MySQL, a second run continues from the recorded
step.

Each program of this service registers the option of this module, in the section of the database.
"""

from typing import Final

from oslo_config import cfg

from placement.conf import placement_database

GROUP: Final = placement_database.GROUP

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "adopt",
        default=False,
        help="""
Whether 'placement-manage db sync' and sync_on_startup adopt a database of
OpenStack Placement in place, as 'placement-manage db adopt' does. Stop
OpenStack Placement first. The old tables are kept under other names, so that
'placement-manage db abandon' can restore them. If false, the service refuses
such a database.

""",
    ),
]
