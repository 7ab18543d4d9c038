"""Section ``[cgroup]``: the cgroup v2 below which process guests have their groups."""

from typing import Any, Final

from oslo_config import cfg

CGROUP_OPTS: Final = [
    cfg.StrOpt(
        "root",
        help="Folder of a delegated cgroup (version 2). Each process guest gets its own cgroup below this"
        " folder. If the folder is not set or not writable, the agent pins process guests by scheduler"
        " affinity only.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the section known to ``conf``."""
    conf.register_opts(CGROUP_OPTS, group="cgroup")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options of the section, for the sample file."""
    return [("cgroup", CGROUP_OPTS)]
