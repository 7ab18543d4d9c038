"""All options of the service, by group. The generator of the sample configuration reads them here, too.

Each section is a module with its ``GROUP`` and its ``OPTIONS``. Only this module registers these options.
Extensions have their own sections.
"""

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from oslo_config import cfg
from oslo_middleware import cors

from placement import extensions
from placement.conf import api, metrics, placement, placement_database, reservations, tracing

_CORE: Final[Sequence[ModuleType]] = (api, placement, reservations, metrics, tracing, placement_database)


def _all_sections() -> list[ModuleType]:
    return [*_CORE, *extensions.registered_objects("options").values()]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the service and its extensions."""
    # groups are registered by name, because two configurations with the same group object would share its
    # values
    for module in _all_sections():
        conf.register_opts(module.OPTIONS, group=module.GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options by group (an entry point of ``oslo.config.opts``, for ``oslo-config-generator``)."""
    return [(module.GROUP, module.OPTIONS) for module in _all_sections()]


def set_library_defaults() -> None:
    """Change the defaults of libraries' options for this service.

    This function is an entry point in the group ``oslo.config.opts.defaults``.
    """
    cors.set_defaults(
        allow_headers=["X-Auth-Token", "X-Openstack-Request-Id", "OpenStack-API-Version"],
        expose_headers=["X-Openstack-Request-Id", "OpenStack-API-Version"],
        allow_methods=["GET", "PUT", "POST", "DELETE"],
    )


def check_values(conf: cfg.ConfigOpts) -> None:
    """Read every option once, so that wrong values are found at the start.

    :raises oslo_config.cfg.ConfigFileValueError: a value in a file is wrong. The message has the option, the
        value and the reason.
    :raises ValueError: a value from the environment or the command line is wrong.
    """
    # oslo.config parses a value only when it is read, so a wrong value would fail in the middle of a request
    for group, options in list_opts():
        for option in options:
            try:
                conf[group.name][option.dest]
            except cfg.ConfigSourceValueError as error:
                raise _value_error(group.name, option.dest, str(error)) from error


def _value_error(group: str, option: str, text: str) -> cfg.ConfigFileValueError:
    """Return oslo.config's error with the section added.

    If the value seems to end with a comment, the error also has advice.
    """
    where, _, reason = text.rpartition(" is not valid: ")
    if file := re.search(r"detail='(.*)'\)", where):
        reason += f" (in {file[1]})"
    if re.search(r"\s[#;]", reason):
        reason += (
            "; in an ini file all text after the equals sign is the value: put a comment, which begins"
            " with # or ;, on a line of its own"
        )
    return cfg.ConfigFileValueError(f"[{group}] {option}: {reason}")
