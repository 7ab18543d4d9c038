"""Section ``[cgroup]``: the cgroup (version 2) below which each process guest has a cgroup of its own."""

from typing import Final

from oslo_config import cfg

CGROUP_OPTS: Final = [
    cfg.StrOpt(
        "root",
        help="Folder of a delegated cgroup (version 2). Each process guest gets its own cgroup below this"
        " folder. If the option is not set, or the folder is not writable, the agent pins process guests by"
        " scheduler affinity only.",
    ),
]

SECTIONS: Final = {"cgroup": CGROUP_OPTS}
