"""The agent's ini file: options by section, one module for each section, or for sections of one kind.

An option module has ``register_opts(conf)``, which makes its options known, and ``list_opts()``, the same as
``(group, options)`` pairs for ``oslo-config-generator``. A new one is added to ``MODULES``.
"""

import contextlib
import io
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log

from compute_agent.conf import (
    blockio,
    capacity,
    cgroup,
    compute,
    cpu_class,
    cpu_pool,
    daemon,
    events,
    fleet,
    guest_rule,
    guests,
    host,
    interference,
    libvirt,
    monitoring,
    pci,
    placement,
    policy,
    qos,
    resctrl,
    tracing,
    written,
)
from compute_agent.model.cpuset import CPU_POOL

MODULES: Final[tuple[ModuleType, ...]] = (
    host,
    compute,
    pci,
    placement,
    guests,
    guest_rule,
    policy,
    libvirt,
    cgroup,
    qos,
    interference,
    blockio,
    cpu_class,
    cpu_pool,
    resctrl,
    monitoring,
    capacity,
    events,
    fleet,
    tracing,
    daemon,
)

PROJECT: Final = "compute-agent"

_OPTIONS: Final = "oslo.config.opts"
"""The entry points under which packages name their options."""

OWN_OPTIONS: Final = ("config_file", "config_dir", "config_source")
"""What oslo.config itself knows."""


def load(
    args: Sequence[str] = (), config_files: Sequence[str] | None = None, below: Sequence[str] = ()
) -> cfg.ConfigOpts:
    """The options of the command line ``args`` and of ``config_files``, later files overriding earlier ones.

    All of them override the files ``below``. Without ``config_files`` those that oslo.config finds by itself,
    such as /etc/compute-agent/compute-agent.conf. Raises the errors of oslo.config (cfg.Error), which name
    the file and the option.
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf.set_default("use_stderr", True)  # where service managers look
    for module in MODULES:
        module.register_opts(conf)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            conf(
                list(args),
                project=PROJECT,
                default_config_files=[
                    *below,
                    *(cfg.find_config_files(PROJECT) if config_files is None else config_files),
                ],
                default_config_dirs=None if config_files is None else [],
            )
    except SystemExit as error:
        # As values of options are refused that could be on a command line as well, such as debug.
        option, _, reason = said.getvalue().strip().removeprefix("argument --").partition(": ")
        raise written.value_error("DEFAULT", option.replace("-", "_"), ValueError(reason)) from error
    sys.stderr.write(said.getvalue())
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
            try:
                getattr(section, option.dest)
            except cfg.NoSuchOptError:
                continue  # listed for the sample only, such as those of an auth plugin
            except cfg.ConfigSourceValueError as error:
                raise written.value_error(group, option.dest, error) from error


def find_unknown_options(conf: cfg.ConfigOpts) -> list[str]:
    """What the files of ``conf`` say to no effect, or to another one than it looks like: a sentence each.

    In the sections of watermarks and classes, and in [qos], load() refuses what it does not know.
    """
    known: dict[str, set[str]] = {"DEFAULT": set(OWN_OPTIONS)}
    for group, options in known_options(conf):
        known.setdefault(group, set()).update(written.names_of(options))
    return written.unknown_options(written.read(written.files_of(conf)), known, free_sections(conf))


def known_options(conf: cfg.ConfigOpts) -> list[tuple[str, list[Any]]]:
    """All options that can be in the files of ``conf``, by section, those of libraries included."""
    pairs = (*list_opts(), *log_options(), (placement.GROUP, placement.auth_opts(conf) or []))
    return [(group or "DEFAULT", options) for group, options in pairs]


def log_options() -> list[tuple[str | None, list[Any]]]:
    """The options of oslo.log, by section."""
    return [pair for entry in entry_points(group=_OPTIONS, name="oslo.log") for pair in entry.load()()]


def free_sections(conf: cfg.ConfigOpts) -> list[str]:
    """Sections, and beginnings of names of sections, in which any option may be, as far as files tell."""
    free = [qos.WATERMARK, qos.QOS_CLASS, interference.INTERFERENCE]
    free += [blockio.BLOCKIO_CLASS, cpu_class.CPU_CLASS, CPU_POOL, guest_rule.GUEST_RULE]
    if conf.fleet.group:
        free.append(fleet.GUEST)
    if placement.auth_opts(conf) is None:
        free.append(conf.placement.auth_section or placement.GROUP)
    return free


def list_opts() -> list[tuple[str, list[Any]]]:
    """All options of the agent, for ``oslo-config-generator --namespace compute_agent.conf``."""
    return [pair for module in MODULES for pair in module.list_opts()]
