"""The agent's ini file: options by section, one module for each subject.

An option module has `register_opts(conf)`, which makes its options known, and `list_opts()`, the same as
`(group, options)` pairs for `oslo-config-generator`. A new one is added to `MODULES`.
"""

from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from oslo_config import cfg
from oslo_log import log

from compute_agent.conf import compute, daemon, guests, host, monitoring, placement, qos, resctrl

MODULES: tuple[ModuleType, ...] = (host, compute, placement, guests, qos, resctrl, monitoring, daemon)

PROJECT = "compute-agent"


def load(args: Sequence[str] = (), config_files: Sequence[str] | None = None) -> cfg.ConfigOpts:
    """The options of the command line `args` and of `config_files`, later files overriding earlier ones.

    Without `config_files` those that oslo.config finds by itself, such as
    /etc/compute-agent/compute-agent.conf. Raises the errors of oslo.config (cfg.Error), which name the file
    and the option.
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    for module in MODULES:
        module.register_opts(conf)
    conf(
        list(args),
        project=PROJECT,
        default_config_files=None if config_files is None else list(config_files),
        default_config_dirs=None if config_files is None else [],
    )
    qos.register_sections(conf)
    _check_values(conf)
    return conf


def _check_values(conf: cfg.ConfigOpts) -> None:
    """Look at every value, as oslo.config converts and checks them only when they are asked for."""
    for group, options in list_opts():
        if group.endswith(":NAME"):
            continue  # stands for sections that have been looked at as they became known
        section = conf if group == "DEFAULT" else conf[group]
        for option in options:
            with suppress(cfg.NoSuchOptError):  # listed for the sample only, such as those of an auth plugin
                getattr(section, option.dest)


def list_opts() -> list[tuple[str, list[Any]]]:
    """All options of the agent, for `oslo-config-generator --namespace compute_agent.conf`."""
    return [pair for module in MODULES for pair in module.list_opts()]
