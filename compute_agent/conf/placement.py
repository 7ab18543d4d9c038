"""Section ``[placement]``: access to Placement, with the options of keystoneauth, as in Nova."""

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

from keystoneauth1 import loading
from oslo_config import cfg

GROUP = "placement"

RETRY_OPTS: Final = [
    cfg.IntOpt(
        "report_retry_maximum",
        default=60,
        min=1,
        help="Longest pause, in seconds, between two attempts to report while reports fail. The first pause"
        " is one second. Each further pause is twice as long, up to this limit.",
    ),
]

SECTIONS: Final = {GROUP: RETRY_OPTS}


def register_session(conf: cfg.ConfigOpts) -> None:
    """Register keystoneauth's options of authentication, session and endpoint, with the agent's defaults."""
    loading.register_auth_conf_options(conf, GROUP)
    loading.register_session_conf_options(conf, GROUP)
    loading.register_adapter_conf_options(conf, GROUP)
    conf.set_default("service_type", "placement", group=GROUP)
    # The agent retries, so a lost connection or a restart of the server is no error. Without a timeout, a
    # server that hangs would block the agent.
    conf.set_default("connect_retries", 2, group=GROUP)
    conf.set_default("connect_retry_delay", 0.2, group=GROUP)
    conf.set_default("status_code_retries", 2, group=GROUP)
    conf.set_default("status_code_retry_delay", 0.2, group=GROUP)
    conf.set_default("timeout", 10, group=GROUP)


def auth_opts(conf: cfg.ConfigOpts) -> list[Any] | None:
    """Options of the chosen authentication plugin; None if no plugin is chosen in this section."""
    options = conf[GROUP]
    if options.auth_section or options.auth_type not in plugin_names():
        return None
    return list(loading.get_auth_plugin_conf_options(options.auth_type))


@cache
def plugin_names() -> frozenset[str]:
    """The names of the installed authentication plugins.

    The result is cached, because the search takes most of a command's time.
    """
    return frozenset(entry.name for entry in entry_points(group="keystoneauth1.plugin"))


def session_opts() -> list[Any]:
    """The options of keystoneauth, including the options of the authentication plugin ``password``."""
    return [
        *loading.get_auth_common_conf_options(),
        *loading.get_auth_plugin_conf_options("password"),
        *loading.get_session_conf_options(),
        *loading.get_adapter_conf_options(),
    ]
