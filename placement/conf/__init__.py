"""The options of the service, and the function that makes a configuration from files and environment.

The configuration is not a global variable. A command calls :func:`new_config`, and passes the object to all
functions that need it.

Modules
    - Each of the modules ``api``, ``metrics``, ``placement``, ``placement_database``, ``reservations`` and
      ``tracing`` has the options of the section with the same name.
    - ``opts`` gathers these sections and the sections of extensions, for the service and for the sample
      in ``etc``.
    - ``unknown`` finds options in files that the service does not have.

The order of calls
    A command calls :func:`new_config`. The call registers the options of ``opts``, reads the environment and
    the files, and checks every value (:func:`~placement.conf.opts.check_values`). The command then logs the
    warnings of ``unknown``. No module reads a configuration file later, apart from policy files.

Imports
    Every package of the service may import this package. This package itself imports only ``extensions``.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from oslo_config import cfg
from oslo_log import log
from oslo_middleware import cors, http_proxy_to_wsgi
from oslo_policy import opts as policy_opts

from placement.conf import opts

PROJECT: Final = "placement"
"""The name under which oslo.config searches for configuration files."""
CONFIG_FILE: Final = "placement.conf"
"""Name of the configuration file in the folder that the environment names."""


def installed_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("placement-compute")
    except PackageNotFoundError:
        # the program runs from its source, which was not installed
        return "not installed"


def new_config(
    args: Sequence[str] = (),
    config_files: Sequence[str] | None = None,
    cli_opts: Sequence[cfg.Opt] = (),
) -> cfg.ConfigOpts:
    """Return a new configuration with all options of the service registered.

    The first of these sources that has a value for an option sets the option:

    - ``args``, such as ``--config-file``, ``--config-dir`` and ``--debug``;
    - environment variables (``OS_PLACEMENT_DATABASE__CONNECTION`` sets ``[placement_database] connection``);
    - configuration files;
    - defaults.

    :param config_files: read exactly these files. If the argument is None, the environment names the file
        (:func:`files_from_environment`). If the environment names no file, oslo.config looks for
        ``placement.conf`` and ``placement.conf.d`` in its usual folders, such as ``~/.placement`` and
        ``/etc/placement``.
    :param cli_opts: additional options, which only one command has.
    :raises oslo_config.cfg.ConfigFilesNotFoundError: a named file is absent.
    :raises oslo_config.cfg.ConfigFileValueError: a value is not of its option's type.
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf.register_cli_opts(cli_opts)
    opts.register_opts(conf)
    opts.set_library_defaults()
    # libraries register their options when they are used, which would be too late for a check of values
    policy_opts.set_defaults(conf)
    conf.register_opts(cors.CORS_OPTS, group="cors")
    conf.register_opts(http_proxy_to_wsgi.OPTS, group="oslo_middleware")

    files = files_from_environment(os.environ) if config_files is None else list(config_files)
    conf(
        list(args),
        project=PROJECT,
        version=installed_version(),
        default_config_files=files,
        # a named file is the whole configuration, so no usual folder is read in addition
        default_config_dirs=None if files is None else [],
    )
    # the values are checked at the start, so that a wrong value stops the command instead of failing a later
    # request
    opts.check_values(conf)
    return conf


def files_from_environment(environ: Mapping[str, str]) -> list[str] | None:
    """Return the configuration file that environment variables name; None if they name no file.

    ``OS_PLACEMENT_CONFIG_DIR`` is the folder, and ``OS_PLACEMENT_CONFIG`` the file. If both variables are
    set, the file may be a path relative to the folder.
    """
    # OpenStack Placement reads the folder from the same variable
    folder = environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    name = environ.get("OS_PLACEMENT_CONFIG", "").strip()
    if not folder and not name:
        return None
    return [str(Path(folder) / (name or CONFIG_FILE))]
