"""Section ``[cgroup]``: the cgroup v2 below which process guests have their groups."""

from typing import Any, Final

from oslo_config import cfg

CGROUP_OPTS: Final = [
    cfg.StrOpt(
        "root",
        help="Folder of a delegated cgroup v2 group; each process guest gets a group of its own below it."
        " Without it, or where it is not writable, process guests are pinned by scheduler affinity alone.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the section known to ``conf``."""
    conf.register_opts(CGROUP_OPTS, group="cgroup")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options of the section, for the sample file."""
    return [("cgroup", CGROUP_OPTS)]
