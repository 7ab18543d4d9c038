"""Where the processes of this service put their numbers together; nothing here needs prometheus_client."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

from oslo_config import cfg

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client knows the folder."""


@contextmanager
def shared(conf: cfg.ConfigOpts) -> Iterator[None]:
    """In this context, and in processes that are forked in it, numbers are put together in a folder.

    It is that of ``[metrics] directory``, or one that is there for as long as the context is.
    """
    if not conf.metrics.enabled or conf.metrics.directory or DIRECTORY in os.environ:
        yield
        return
    owner, folder = os.getpid(), mkdtemp(prefix="placement-metrics-")
    os.environ[DIRECTORY] = folder
    try:
        yield
    finally:
        if os.getpid() == owner:  # and not one that was forked, which leaves the context, too
            rmtree(folder, ignore_errors=True)
            os.environ.pop(DIRECTORY, None)


def share(conf: cfg.ConfigOpts) -> None:
    """Have this process put its numbers into the folder that the options name, if they do."""
    if conf.metrics.directory:
        os.makedirs(conf.metrics.directory, exist_ok=True)
        os.environ[DIRECTORY] = conf.metrics.directory
