"""Options of moves from OpenStack Placement, in the group of the database; each program registers them."""

from oslo_config import cfg

from placement.conf.placement_database import GROUP

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "adopt",
        default=False,
        help="""
Adopt a database of OpenStack Placement in place, as 'placement-manage db
adopt' does, when 'placement-manage db sync' or sync_on_startup finds one.
Stop OpenStack Placement first. The old tables are kept under other names, so
that 'placement-manage db abandon' can go back. If false, such a database is
refused.

""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options with ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options by group, for oslo-config-generator."""
    return [(GROUP, OPTIONS)]
