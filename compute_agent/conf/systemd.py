"""Section ``[systemd]``: the connection to the systemd of this host, for guests that are services."""

from typing import Any, Final

from oslo_config import cfg

SYSTEMD_OPTS: Final = [
    cfg.StrOpt(
        "bus_socket",
        default="/run/dbus/system_bus_socket",
        help="UNIX socket of the message bus (D-Bus) on which systemd answers. The agent uses this socket"
        " only if [guests] drivers contains systemd.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of section ``[systemd]`` with ``conf``."""
    conf.register_opts(SYSTEMD_OPTS, group="systemd")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file and for the detection of unknown options."""
    return [("systemd", SYSTEMD_OPTS)]
