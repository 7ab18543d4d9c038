"""Section ``[cgroup]``: the cgroup (version 2) below which each process guest has a cgroup of its own."""

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
    """Register the options of section ``[cgroup]`` with ``conf``."""
    conf.register_opts(CGROUP_OPTS, group="cgroup")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file and for the detection of unknown options."""
    return [("cgroup", CGROUP_OPTS)]
