"""Options that apply at the start of the agent only.

These options name things that stay open while the agent runs: the state folder with the uuid of its provider,
sockets, locks, the driver of guests. A reload that changed them would report another host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf import log_options

_DEFAULT: Final = "DEFAULT"

_OWN: Final = (
    (_DEFAULT, "state_path"),
    (_DEFAULT, "lock_path"),
    ("guests", "driver"),
    ("libvirt", "uri"),
    ("cgroup", "root"),
    ("daemon", "socket"),
    ("daemon", "http_address"),
    ("daemon", "http_port"),
)

_LEVEL: Final = "debug"
"""The only option of the log that a reload applies."""


def restart_only_options() -> Iterator[tuple[str, str]]:
    """Section and name of each option that applies at the start only, those of the log included."""
    yield from _OWN
    for _, options in log_options():
        for option in options:
            if option.dest != _LEVEL:
                yield _DEFAULT, option.dest


def keep_started(started: cfg.ConfigOpts, reloaded: cfg.ConfigOpts) -> list[str]:
    """Restore the options that apply at the start only, in a reloaded configuration.

    :param started: the configuration in force.
    :returns: a warning for each option that was changed.
    """
    warnings = []
    for section, name in restart_only_options():
        if section == _DEFAULT and name not in reloaded:
            continue  # listed by oslo.log, and registered by other programs only
        before, now = _option_value(started, section, name), _option_value(reloaded, section, name)
        if before != now:
            reloaded.set_override(name, before, group=None if section == _DEFAULT else section)
            warnings.append(f"[{section}] {name} was changed, and takes effect when the agent is restarted")
    return warnings


def _option_value(conf: cfg.ConfigOpts, section: str, name: str) -> Any:
    return conf[name] if section == _DEFAULT else conf[section][name]
