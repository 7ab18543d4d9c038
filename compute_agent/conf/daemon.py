"""Section ``[daemon]``: the sockets on which the daemon listens."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "daemon"

OPTS: Final = [
    cfg.StrOpt(
        "socket",
        help="UNIX socket on which the daemon answers the command line (mode 0660). Default: agent.sock in"
        " [DEFAULT] state_path. Root and the user of the daemon may call every method. Other users of the"
        " socket's group (the group of its folder, if that has the setgid bit) may call methods that change"
        " nothing. No other user may be able to write to its folder.",
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
