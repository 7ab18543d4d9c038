"""The options for moves from OpenStack Placement, in the section of the database.

Each program of this service registers these options.
"""

from oslo_config import cfg

from placement.conf.placement_database import GROUP

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


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options with ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options by group, for oslo-config-generator."""
    return [(GROUP, OPTIONS)]
