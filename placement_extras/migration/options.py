"""The options for moves from OpenStack Placement, in the section of the database.

Each program of this service registers these options.
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
