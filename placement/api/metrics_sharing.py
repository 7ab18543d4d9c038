"""The folder through which the processes of this service share their metrics.

This module is separate from :mod:`placement.api.metrics` because the folder has to be known before
prometheus_client is imported.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

from oslo_config import cfg

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable from which prometheus_client reads the path of the folder."""


@contextmanager
def shared_directory(conf: cfg.ConfigOpts) -> Iterator[None]:
    """Return a context in which this process, and processes that it forks, share their metrics in a folder.

    The folder is ``[metrics] directory``, or a new folder that is removed at the end of the context.
    """
    # share() handles a folder from the configuration, and a folder from the environment is used unchanged
    if not conf.metrics.enabled or conf.metrics.directory or DIRECTORY in os.environ:
        yield
        return
    owner, folder = os.getpid(), mkdtemp(prefix="placement-metrics-")
    os.environ[DIRECTORY] = folder
    try:
        yield
    finally:
        # forked processes also run this code when they end, but only the original process removes the folder
        if os.getpid() == owner:
            rmtree(folder, ignore_errors=True)
            os.environ.pop(DIRECTORY, None)


def share(conf: cfg.ConfigOpts) -> None:
    """Make this process share its metrics in the folder of ``[metrics] directory``, if this option is set."""
    if conf.metrics.directory:
        os.makedirs(conf.metrics.directory, exist_ok=True)
        os.environ[DIRECTORY] = conf.metrics.directory
