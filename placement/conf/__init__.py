"""Options of the service: where they are read from and how a configuration is made.

There is no global configuration: whoever needs options is given the object
that :func:`new_config` returns.
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
CONFIG_FILE: Final = "placement.conf"


def installed_version() -> str:
    """The version of the distribution."""
    try:
        return version("placement-compute")
    except PackageNotFoundError:
        return "not installed"


def new_config(
    args: Sequence[str] = (),
    config_files: Sequence[str] | None = None,
    cli_opts: Sequence[cfg.Opt] = (),
) -> cfg.ConfigOpts:
    """A fresh configuration with all options of the service registered.

    Values come, strongest first, from ``args`` (``--config-file``,
    ``--config-dir``, ``--debug`` ...), from environment variables
    (``OS_PLACEMENT_DATABASE__CONNECTION`` sets ``[placement_database]
    connection``), from the configuration files and from the defaults.

    :param config_files: exactly these files; None for those that the
        environment names (see :func:`files_from_environment`), else the usual
        places (``~/.placement``, ``/etc/placement/placement.conf`` and
        ``placement.conf.d``).
    :param cli_opts: options of a command of its own, beside those of all.
    :raises oslo_config.cfg.ConfigFilesNotFoundError: a named file is absent.
    :raises oslo_config.cfg.ConfigFileValueError: a value is not of its option's type.
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf.register_cli_opts(cli_opts)
    opts.register_opts(conf)
    opts.set_library_defaults()
    policy_opts.set_defaults(conf)
    conf.register_opts(cors.CORS_OPTS, group="cors")
    conf.register_opts(http_proxy_to_wsgi.OPTS, group="oslo_middleware")

    files = files_from_environment(os.environ) if config_files is None else list(config_files)
    conf(
        list(args),
        project=PROJECT,
        version=installed_version(),
        default_config_files=files,
        default_config_dirs=None if files is None else [],
    )
    opts.check(conf)
    return conf


def files_from_environment(environ: Mapping[str, str]) -> list[str] | None:
    """The configuration file that the environment names, None where it names none.

    ``OS_PLACEMENT_CONFIG_DIR`` is the folder and ``OS_PLACEMENT_CONFIG`` the
    file; a relative file lies in the folder if that is given too.
    """
    folder = environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    name = environ.get("OS_PLACEMENT_CONFIG", "").strip()
    if not folder and not name:
        return None
    return [str(Path(folder) / (name or CONFIG_FILE))]
