"""Options that take effect only when the agent starts.

These options name things that stay open while the agent runs: the state folder, sockets, locks, and the
driver of guests. For example, the state folder has the uuid of the agent's provider. If a reload changed the
state folder, the agent would report another host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf import log_options

# The agent's own options. restart_only_options() adds the options of the log.
_DEFAULT: Final = "DEFAULT"

_OWN: Final = (
    (_DEFAULT, "state_path"),
    (_DEFAULT, "lock_path"),
    ("guests", "drivers"),
    ("libvirt", "uri"),
    ("cgroup", "root"),
    ("systemd", "bus_socket"),
    ("systemd", "guest_names"),
    ("podman", "socket"),
    ("podman", "guest_names"),
    ("podman", "pods"),
    ("docker", "socket"),
    ("docker", "guest_names"),
    ("daemon", "socket"),
    ("daemon", "http_address"),
    ("daemon", "http_port"),
)

_LEVEL: Final = "debug"
"""The only option of the log that a reload applies."""


def restart_only_options() -> Iterator[tuple[str, str]]:
    """Section and name of each option that takes effect only at a start, including options of the log."""
    yield from _OWN
    for _, options in log_options():
        for option in options:
            if option.dest != _LEVEL:
                yield _DEFAULT, option.dest


def keep_started(started: cfg.ConfigOpts, reloaded: cfg.ConfigOpts) -> list[str]:
    """Restore, in a reloaded configuration, the options that take effect only at a start.

    :param started: the configuration in force, which the agent has read at its start or last reload.
    :param reloaded: the new configuration, which this function changes.
    :returns: a warning for each option that has a new value in the files.
    """
    warnings = []
    for section, name in restart_only_options():
        if section == _DEFAULT and name not in reloaded:
            continue  # oslo.log lists the option, but only other programs register it
        before, now = _option_value(started, section, name), _option_value(reloaded, section, name)
        if before != now:
            reloaded.set_override(name, before, group=None if section == _DEFAULT else section)
            warnings.append(f"[{section}] {name} was changed, and takes effect when the agent is restarted")
    return warnings


def _option_value(conf: cfg.ConfigOpts, section: str, name: str) -> Any:
    return conf[name] if section == _DEFAULT else conf[section][name]
