"""The agent's ini file: options by section.

Modules
    Each section has a module of the same name, even if the module is short. So the help of an option is easy
    to find. A family of sections, such as ``[watermark:NAME]``, counts as one section. The constant
    ``SECTIONS`` of a module has the options of its sections. ``MODULES`` lists the modules of sections. The
    other modules define no options:

    - ``option_types`` has types of options, such as lengths of time
    - ``written`` reads the text of ini files, for errors about unknown options and misplaced comments
    - ``origins`` lists the options in force, each with the file that sets it
    - ``levels`` lists the options that are beta or experimental

Order of calls
    :func:`load` registers all options, reads the files, and registers the sections of families in these
    files. :func:`load` then reads each value once, because oslo.config checks a value only when it is read.
    Each package of the agent is allowed to import this package.
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
    containers,
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
    levels,
    libvirt,
    metric_source,
    metrics,
    monitoring,
    pci,
    placement,
    policy,
    qos,
    resctrl,
    systemd,
    tracing,
    written,
)

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
    systemd,
    containers,
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

DEFAULT_FILE: Final = f"/etc/{PROJECT}/{PROJECT}.conf"
"""The file that a command reads without ``--config-file``."""

_OPTIONS: Final = "oslo.config.opts"
"""The group of Python entry points by which packages announce their options."""

_FAMILY: Final = ":NAME"
"""The end of the section name of a family of sections."""

OWN_OPTIONS: Final = ("config_file", "config_dir", "config_source")
"""The names of options that oslo.config itself defines."""


def load(
    args: Sequence[str] = (), config_files: Sequence[str] | None = None, below: Sequence[str] = ()
) -> cfg.ConfigOpts:
    """Read the configuration from a command line and from files.

    :param config_files: the files to read; later files override earlier ones. With None, oslo.config finds
        the files, such as :data:`DEFAULT_FILE`.
    :param below: files that each of the other files overrides, such as the applied revision of fleet
        settings.

    :raises cfg.Error: a file or a value is wrong. The text of the error names the file and the option.
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf.set_default("use_stderr", True)  # service managers read the log from standard error
    placement.register_session(conf)
    for module in MODULES:
        register_module(conf, module)
    files, folders = config_files, list[str]()
    if files is None:
        # The program has the name of the project, so oslo.config finds each file and folder twice. An option
        # with several values would then have each value twice.
        files, folders = (
            list(dict.fromkeys(find(PROJECT))) for find in (cfg.find_config_files, cfg.find_config_dirs)
        )
    # For a wrong value, argparse prints an error and ends the process, even if the value is from a file. This
    # code puts the output of argparse into the text of an exception.
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            conf(
                list(args),
                project=PROJECT,
                default_config_files=[*below, *files],
                default_config_dirs=folders,
            )
    except SystemExit as error:
        # argparse refuses only values of options that a command line can also have, such as debug.
        option, _, reason = said.getvalue().strip().removeprefix("argument --").partition(": ")
        raise written.value_error("DEFAULT", option.replace("-", "_"), ValueError(reason)) from error
    sys.stderr.write(said.getvalue())
    qos.register_sections(conf)
    _check_values(conf)
    return conf


def register_module(conf: cfg.ConfigOpts, module: ModuleType) -> None:
    """Register the options of a module in ``MODULES``, except options of families.

    The sections of a family are known only after the files were read.
    """
    for section, options in module.SECTIONS.items():
        if not section.endswith(_FAMILY):
            conf.register_opts(options, group=None if section == "DEFAULT" else section)


def _check_values(conf: cfg.ConfigOpts) -> None:
    """Read each value once, because oslo.config converts and checks a value only when it is read.

    :raises cfg.Error: a value is wrong.
    """
    for group, options in list_opts():
        if group.endswith(_FAMILY):
            continue  # register_sections() of ``qos`` has read the sections of families
        section = conf if group == "DEFAULT" else conf[group]
        for option in options:
            try:
                getattr(section, option.dest)
            except cfg.NoSuchOptError:
                # the option is listed for the sample file, but is not registered yet: an authentication
                # plugin, for example, registers its options later
                continue
            except cfg.ConfigSourceValueError as error:
                raise written.value_error(group, option.dest, error) from error


def find_unknown_options(conf: cfg.ConfigOpts) -> list[str]:
    """Sentences about lines of the ini files that have no effect, or another effect than they seem to have.

    The result contains no unknown options of [qos] and of families of sections, because :func:`load` raises
    an error for such an option.
    """
    known: dict[str, set[str]] = {"DEFAULT": set(OWN_OPTIONS)}
    for group, options in known_options(conf):
        known.setdefault(group, set()).update(written.names_of(options))
    return written.unknown_options(written.read(written.files_of(conf)), known, free_sections(conf))


def known_options(conf: cfg.ConfigOpts) -> list[tuple[str, list[Any]]]:
    """All options that files can have, by section. The options of oslo.log and keystoneauth are included."""
    pairs = (*list_opts(), *log_options(), (placement.GROUP, placement.auth_opts(conf) or []))
    return [(group or "DEFAULT", options) for group, options in pairs]


def log_options() -> list[tuple[str | None, list[Any]]]:
    """The options of oslo.log by section; None stands for ``[DEFAULT]``."""
    return [pair for entry in entry_points(group=_OPTIONS, name="oslo.log") for pair in entry.load()()]


def free_sections(conf: cfg.ConfigOpts) -> list[str]:
    """Sections, and families that end in a colon, in which unknown options are not reported."""
    free = list(qos.FAMILIES)
    if conf.fleet.group:
        free.append(fleet.GUEST)
    if placement.auth_opts(conf) is None:
        free.append(conf.placement.auth_section or placement.GROUP)
    return free


def list_opts() -> list[tuple[str, list[Any]]]:
    """All options of the agent by section, for ``oslo-config-generator --namespace compute_agent.conf``."""
    return [
        (section, levels.mark_options(section, [*_library_opts(module), *options]))
        for module in MODULES
        for section, options in module.SECTIONS.items()
    ]


def _library_opts(module: ModuleType) -> list[Any]:
    return placement.session_opts() if module is placement else []
