"""Where the daemon listens."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "daemon"

OPTS: Final = [
    cfg.StrOpt(
        "socket",
        help="UNIX socket on which the daemon answers the command line (mode 0660); agent.sock in"
        " [DEFAULT] state_path by default. Root and the user of the daemon may ask for everything, others of"
        " the socket's group (that of its folder, if the folder has the bit for that) for what changes"
        " nothing. To be in a folder in which nobody else may write.",
    ),
    cfg.StrOpt(
        "http_address",
        default="127.0.0.1",
        help="Address of /healthz and /metrics.",
    ),
    cfg.PortOpt(
        "http_port",
        default=9464,
        min=0,
        help="Port of /healthz and /metrics; 0 switches them off.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [daemon] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
