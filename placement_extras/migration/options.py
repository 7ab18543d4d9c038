"""Options of moves from OpenStack Placement, in the group of the database that they change."""

from oslo_config import cfg

from placement.conf.placement_database import GROUP

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "adopt",
        default=False,
        help="""
Take the database of OpenStack Placement over, in place, where 'placement-manage
db sync' (or sync_on_startup) finds one: as 'placement-manage db adopt' does. Stop
that service before. Its tables are kept under other names, so that
'placement-manage db abandon' can go back.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
