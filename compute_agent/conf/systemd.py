"""Section ``[systemd]``: the connection to the systemd of this host, for guests that are units."""

from typing import Final

from oslo_config import cfg

SYSTEMD_OPTS: Final = [
    cfg.StrOpt(
        "bus_socket",
        default="/run/dbus/system_bus_socket",
        help="UNIX socket of the message bus (D-Bus) on which systemd answers. The agent uses this socket"
        " only if [guests] drivers contains systemd.",
    ),
    cfg.ListOpt(
        "guest_names",
        default=[],
        help="Names of units (services, scopes and slices) that are guests without the section"
        " [X-ComputeAgent]: a list of texts or patterns (*, ?, [abc]), such as postgresql@*.service."
        " Guest=false in the section overrides this list.",
    ),
]

SECTIONS: Final = {"systemd": SYSTEMD_OPTS}
