"""Folders of the agent: the host's files, the state that survives restarts, and locks."""

from typing import Any, Final

from oslo_config import cfg

DEFAULT_OPTS: Final = [
    cfg.StrOpt(
        "state_path",
        default="/var/lib/compute-agent",
        help="Folder of the agent's state: its provider uuid, the guests that it placed, measurements."
        " DISK_GB is the size of its file system. It has to belong to the agent's user or to root, and no"
        " other user may be able to write there.",
    ),
    cfg.StrOpt(
        "lock_path",
        help="Folder of the locks that keep two agents from managing the same guests; the same for all agents"
        " of a host. Default: /run/compute-agent. For other users than root: compute-agent in"
        " $XDG_RUNTIME_DIR, and without that /tmp/compute-agent-UID.",
    ),
]

HOST_OPTS: Final = [
    cfg.StrOpt(
        "root",
        default="/",
        help="Folder below which /sys and /proc are read; another one than / for a tree captured elsewhere.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make [DEFAULT] state_path, lock_path and section [host] known to ``conf``."""
    conf.register_opts(DEFAULT_OPTS)
    conf.register_opts(HOST_OPTS, group="host")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [("DEFAULT", DEFAULT_OPTS), ("host", HOST_OPTS)]
