"""Reads the model in the parent process before it forks workers, so that the workers share its memory.

The kernel copies a page of memory when a process first writes to it. Python writes to an object whenever the
number of references to the object changes. So the memory of a worker grows with the providers that searches
visit and that change.

The parent drops its model after the fork. The parent could not keep its model current, because a process that
forks must have no connections; a worker that starts later reads a newer file.
"""

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from placement.read_model.columns import DamagedFile, decode_model
from placement.read_model.follower import ModelState, without_collection
from placement.read_model.model_file import ModelFile

LOG = logging.getLogger(__name__)

_preloaded: dict[str, tuple[str, ModelState]] = {}
"""The history and the state of a model by the path of its file; at most one model."""


@contextmanager
def preloaded_model(path: str) -> Iterator[None]:
    """Read the model; processes that are forked in this context get it from :func:`find_preloaded`.

    Without a usable file there is no model, and each worker handles the file as if it started alone.
    """
    if path in _preloaded:  # during a reload, gunicorn also starts missing workers
        yield
        return
    parent = os.getpid()
    try:
        with without_collection():
            _preloaded[path] = decode_model(ModelFile(path).read())
            _fill_caches(_preloaded[path][1])
        _return_free_memory()
        # no variable may keep the model alive, so the number is looked up
        count = len(_preloaded[path][1].snapshot)
        LOG.info("Read %d resource providers from the model file for all workers", count)
    except (OSError, DamagedFile, MemoryError) as error:
        drop_preloaded(path)
        LOG.debug("There is no model for all workers: %r", error)
    try:
        yield
    finally:
        # a worker leaves this context when it ends; dropping the model would only delay the end
        if os.getpid() == parent:
            drop_preloaded(path)
            _return_free_memory()


def find_preloaded(path: str) -> tuple[str, ModelState] | None:
    """Return the history and the state of the model that the parent process has read, if there is one."""
    return _preloaded.get(path)


def drop_preloaded(path: str) -> None:
    """Drop the model: in the parent after the fork, in a worker when it has taken or refused the model."""
    _preloaded.pop(path, None)


def _fill_caches(state: ModelState) -> None:
    """Fill the caches for which each worker would otherwise read all providers, and so copy their memory."""
    snapshot = state.snapshot
    snapshot.roots()
    _ = snapshot.by_name
    for index in (snapshot.by_class, snapshot.by_trait, snapshot.by_aggregate):
        for name in index:
            snapshot.roots_having(index, name)
    for bucket in state.stamps:
        state.bucket_fingerprint(bucket)


def _return_free_memory() -> None:
    """Return the memory of the decoded file and of dropped objects to the kernel."""
    # only the C library of GNU has this function, and its heap would stay 70 MB larger for 250,000 providers
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
