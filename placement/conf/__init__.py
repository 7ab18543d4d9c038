"""The options of the service, and the function that makes a configuration from files and environment.

The configuration is not a global variable. A command calls :func:`new_config`, and passes the object to all
functions that need it.

Modules
    - Each of the modules ``api``, ``metrics``, ``placement``, ``placement_database``, ``reservations`` and
      ``tracing`` has the options of the section with the same name.
    - ``opts`` collects these sections and the sections of extensions, for the service and for the sample
      in ``etc``.
    - ``unknown`` finds options in configuration files that the service does not have.

The order of calls
    A command calls :func:`new_config`. This function registers the options of ``opts``, reads the environment
    and the files, and checks every value (:func:`~placement.conf.opts.check_values`). The command then logs
    the warnings of ``unknown``. Later, only policy files are read again.

Imports
    All packages of the service are allowed to import this package. This package itself imports only
    ``extensions``.
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
"""Name of the configuration file, if the environment has only its folder."""


def installed_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("placement-compute")
    except PackageNotFoundError:
        # the program runs from its source code, without an installation
        return "not installed"


def new_config(
    args: Sequence[str] = (),
    config_files: Sequence[str] | None = None,
    cli_opts: Sequence[cfg.Opt] = (),
) -> cfg.ConfigOpts:
    """Return a new configuration with all options of the service registered.

    If several of these sources have a value for an option, the first one decides:

    - ``args``, such as ``--config-file``, ``--config-dir`` and ``--debug``;
    - environment variables (``OS_PLACEMENT_DATABASE__CONNECTION`` sets ``[placement_database] connection``);
    - configuration files;
    - defaults.

    :param config_files: the configuration files. If this is None, the file from the environment is read
        (:func:`files_from_environment`). If the environment has no file, oslo.config searches for
        ``placement.conf`` and ``placement.conf.d`` in its usual folders, such as ``~/.placement`` and
        ``/etc/placement``.
    :param cli_opts: additional options, which only the calling command has.
    :raises oslo_config.cfg.ConfigFilesNotFoundError: one of the files does not exist.
    :raises oslo_config.cfg.ConfigFileValueError: a value does not have the type of its option.
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf.register_cli_opts(cli_opts)
    opts.register_opts(conf)
    opts.set_library_defaults()
    # libraries register their options only when they are used, and the values are checked before, so the
    # options are registered here
    policy_opts.set_defaults(conf)
    conf.register_opts(cors.CORS_OPTS, group="cors")
    conf.register_opts(http_proxy_to_wsgi.OPTS, group="oslo_middleware")

    files = files_from_environment(os.environ) if config_files is None else list(config_files)
    conf(
        list(args),
        project=PROJECT,
        version=installed_version(),
        default_config_files=files,
        # if files are given, they are the whole configuration, and the usual folders are not read
        default_config_dirs=None if files is None else [],
    )
    # all values are checked here. Otherwise a wrong value would only lead to the failure of a later request.
    opts.check_values(conf)
    return conf


def files_from_environment(environ: Mapping[str, str]) -> list[str] | None:
    """Return the configuration file from environment variables; None if they are not set.

    ``OS_PLACEMENT_CONFIG_DIR`` is the folder, and ``OS_PLACEMENT_CONFIG`` is the file. If both variables are
    set, the file can be a path relative to the folder.
    """
    # OpenStack Placement reads the folder from the same variable
    folder = environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    name = environ.get("OS_PLACEMENT_CONFIG", "").strip()
    if not folder and not name:
        return None
    return [str(Path(folder) / (name or CONFIG_FILE))]
