"""How the agent reaches Placement: keystoneauth's options, in [placement] as Nova has them."""

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
        help="Longest pause in seconds between two attempts to report, when reports fail. The first is a"
        " second, and"
        " each is twice the one before.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [placement] known to ``conf``: authentication, session, endpoint."""
    loading.register_auth_conf_options(conf, GROUP)
    loading.register_session_conf_options(conf, GROUP)
    loading.register_adapter_conf_options(conf, GROUP)
    conf.register_opts(RETRY_OPTS, group=GROUP)
    conf.set_default("service_type", "placement", group=GROUP)
    # A lost connection or a restarting server should not cost a command; a server that hangs should not hang
    # us.
    conf.set_default("connect_retries", 2, group=GROUP)
    conf.set_default("connect_retry_delay", 0.2, group=GROUP)
    conf.set_default("status_code_retries", 2, group=GROUP)
    conf.set_default("status_code_retry_delay", 0.2, group=GROUP)
    conf.set_default("timeout", 10, group=GROUP)


def auth_opts(conf: cfg.ConfigOpts) -> list[Any] | None:
    """The options of the authentication plugin that ``conf`` names.

    None where that cannot be told: it names none or one that is not there, or another section has them.
    """
    options = conf[GROUP]
    if options.auth_section or options.auth_type not in plugin_names():
        return None
    return list(loading.get_auth_plugin_conf_options(options.auth_type))


@cache
def plugin_names() -> frozenset[str]:
    """The authentication plugins that are installed, as the program found them first."""
    return frozenset(entry.name for entry in entry_points(group="keystoneauth1.plugin"))


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    options = (
        loading.get_auth_common_conf_options()
        + loading.get_auth_plugin_conf_options("password")
        + loading.get_session_conf_options()
        + loading.get_adapter_conf_options()
        + RETRY_OPTS
    )
    return [(GROUP, options)]
