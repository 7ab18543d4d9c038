"""Where the agent reads the host, and where it keeps what must outlive a restart."""

from typing import Any, Final

from oslo_config import cfg

DEFAULT_OPTS: Final = [
    cfg.StrOpt(
        "state_path",
        default="/var/lib/compute-agent",
        help="Folder for what the agent keeps: its provider uuid, the guests it placed, measurements. DISK_GB"
        " counts the file system it lies on. It has to belong to the agent's user or to root, and nobody else"
        " may be able to write there.",
    ),
    cfg.StrOpt(
        "lock_path",
        help="Folder for the locks that keep two agents from looking after the same guests; all agents of the"
        " host should have the same. By default /run/compute-agent; for other users than root compute-agent"
        " in $XDG_RUNTIME_DIR, and without that /tmp/compute-agent-UID.",
    ),
]

HOST_OPTS: Final = [
    cfg.StrOpt(
        "root",
        default="/",
        help="Folder below which /sys and /proc are read: another than / for a tree captured elsewhere.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make [DEFAULT] state_path, lock_path and section [host] known to ``conf``."""
    conf.register_opts(DEFAULT_OPTS)
    conf.register_opts(HOST_OPTS, group="host")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [("DEFAULT", DEFAULT_OPTS), ("host", HOST_OPTS)]
