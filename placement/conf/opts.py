"""Every option of the service, by group; the entry point of the sample generator."""

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from oslo_config import cfg
from oslo_middleware import cors

from placement import extensions
from placement.conf import api, metrics, placement, placement_database, tracing

_CORE: Final[Sequence[ModuleType]] = (api, placement, metrics, tracing, placement_database)


def _modules() -> list[ModuleType]:
    return [*_CORE, *extensions.registered_objects("options").values()]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the service's own options known to ``conf``.

    The modules register them by the name of their group, since configurations
    that are given the same group object share the values in it.
    """
    for module in _modules():
        module.register_opts(conf)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """All options by group, for ``oslo-config-generator`` (``oslo.config.opts``)."""
    return [pair for module in _modules() for pair in module.list_opts()]


def set_library_defaults() -> None:
    """Defaults of libraries' options that suit this API (``oslo.config.opts.defaults``)."""
    cors.set_defaults(
        allow_headers=["X-Auth-Token", "X-Openstack-Request-Id", "OpenStack-API-Version"],
        expose_headers=["X-Openstack-Request-Id", "OpenStack-API-Version"],
        allow_methods=["GET", "PUT", "POST", "DELETE"],
    )


def check(conf: cfg.ConfigOpts) -> None:
    """Read every option once, because oslo.config looks at a value only when it is asked for.

    :raises oslo_config.cfg.ConfigFileValueError: names the option, the value and what is wrong.
    :raises ValueError: likewise, for a value from the environment or the command line.
    """
    for group, options in list_opts():
        for option in options:
            try:
                conf[group.name][option.dest]
            except cfg.ConfigSourceValueError as error:
                raise _refused(group.name, option.dest, str(error)) from error


def _refused(group: str, option: str, text: str) -> cfg.ConfigFileValueError:
    """What oslo.config says of a value, with the section, and with what to do if that is a comment."""
    where, _, reason = text.rpartition(" is not valid: ")
    if file := re.search(r"detail='(.*)'\)", where):
        reason += f" (in {file[1]})"
    if re.search(r"\s[#;]", reason):
        reason += (
            "; ini files know no comments behind values, and everything behind the equals sign is the value:"
            " put what begins with # or ; on a line of its own"
        )
    return cfg.ConfigFileValueError(f"[{group}] {option}: {reason}")
