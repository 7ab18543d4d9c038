"""Section ``[daemon]``: the sockets on which the running agent listens."""

from typing import Final

from oslo_config import cfg

OPTS: Final = [
    cfg.StrOpt(
        "socket",
        help="UNIX socket on which the daemon answers the command line (mode 0660). Default: agent.sock in"
        " [DEFAULT] state_path. Root and the user of the daemon are allowed to run every command. Members of"
        " the socket's group are allowed to run only commands that change nothing. If the folder of the"
        " socket has the setgid bit, the socket gets the group of the folder. Other users must not be able to"
        " write to the folder.",
    ),
    cfg.StrOpt(
        "http_address",
        default="127.0.0.1",
        help="IP address on which the daemon serves /healthz and /metrics over HTTP.",
    ),
    cfg.PortOpt(
        "http_port",
        default=9464,
        min=0,
        help="Port of /healthz and /metrics. With 0 the daemon serves neither /healthz nor /metrics.",
    ),
]

SECTIONS: Final = {"daemon": OPTS}
