"""The agent's ini file: options by section.

Modules
    Each section, or family of sections such as ``[watermark:NAME]``, has a module of its name, however short.
    So a question about an option leads to one file. The module of a section has ``register_opts(conf)``,
    which makes its options known. The function ``list_opts()`` returns them by group for
    ``oslo-config-generator``. ``MODULES`` lists these modules.

    - ``duration``: the type of lengths of time
    - ``written``: the text of ini files, for errors about unknown options and comments
    - ``origins``: options in force, and the file of each
    - ``restart_only``: options that a reload does not change

Order of calls
    :func:`load` registers all options, reads the files, and registers the families that the files have. The
    function then reads each value once, as oslo.config checks a value only when it is read. Each package of
    the agent may import this one.
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
    isolation,
    libvirt,
    metric_source,
    metrics,
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
    isolation,
    qos,
    interference,
    metric_source,
    blockio,
    cpu_class,
    cpu_pool,
    resctrl,
    metrics,
    monitoring,
    capacity,
    events,
    fleet,
    tracing,
    daemon,
)

PROJECT: Final = "compute-agent"

_OPTIONS: Final = "oslo.config.opts"
"""The group of entry points of packages with options."""

OWN_OPTIONS: Final = ("config_file", "config_dir", "config_source")
"""Options of oslo.config itself."""


def load(
    args: Sequence[str] = (), config_files: Sequence[str] | None = None, below: Sequence[str] = ()
) -> cfg.ConfigOpts:
    """The options of a command line and of files.

    :param args: the command line.
    :param config_files: files of which later ones override earlier ones. None reads those that oslo.config
        finds, such as /etc/compute-agent/compute-agent.conf.
    :param below: files that all others override.

    :raises cfg.Error: a file or a value is wrong; the text names the file and the option.
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf.set_default("use_stderr", True)  # service managers read it
    for module in MODULES:
        module.register_opts(conf)
    # oslo.config prints errors of values through argparse and exits, also for values from
    # files.
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
        # Options that may also be on a command line, such as debug, are refused this way.
        option, _, reason = said.getvalue().strip().removeprefix("argument --").partition(": ")
        raise written.value_error("DEFAULT", option.replace("-", "_"), ValueError(reason)) from error
    sys.stderr.write(said.getvalue())
    qos.register_sections(conf)
    _check_values(conf)
    return conf


def _check_values(conf: cfg.ConfigOpts) -> None:
    """Read every value: oslo.config converts and checks a value only when it is read."""
    for group, options in list_opts():
        if group.endswith(":NAME"):
            continue  # the sections of a family were read when they became known
        section = conf if group == "DEFAULT" else conf[group]
        for option in options:
            try:
                getattr(section, option.dest)
            except cfg.NoSuchOptError:
                continue  # listed for the sample only, such as options of an auth plugin
            except cfg.ConfigSourceValueError as error:
                raise written.value_error(group, option.dest, error) from error


def find_unknown_options(conf: cfg.ConfigOpts) -> list[str]:
    """A sentence for each line of the files without effect, or with another effect than it seems.

    The result does not contain unknown options of watermarks, classes and [qos], because load() refuses
    these.
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
    """Sections, and prefixes of sections, in which any option may be."""
    free = [qos.WATERMARK, qos.QOS_CLASS, metric_source.METRIC_SOURCE, interference.INTERFERENCE]
    free += [blockio.BLOCKIO_CLASS, cpu_class.CPU_CLASS, CPU_POOL, guest_rule.GUEST_RULE]
    if conf.fleet.group:
        free.append(fleet.GUEST)
    if placement.auth_opts(conf) is None:
        free.append(conf.placement.auth_section or placement.GROUP)
    return free


def list_opts() -> list[tuple[str, list[Any]]]:
    """All options of the agent, for ``oslo-config-generator --namespace compute_agent.conf``."""
    return [pair for module in MODULES for pair in module.list_opts()]
