"""Reads and writes the file of the model, from which a new worker starts.

All workers of a machine share one file. The file is complete at all times, because a writer creates a new
file in the same folder and renames it. During a write the writer holds the lock of a second file.

A server with several workers reads the file in the parent process before it forks workers, so that the
workers share its memory (:func:`preloaded_model`). The kernel copies a page of memory when a process first
writes to it. Python writes to an object whenever the number of references to the object changes. So the
memory of a worker grows with the providers that searches visit and that change.

The parent drops its model after the fork. The parent could not keep its model current, because a process that
forks must have no connections; a worker that starts later reads a newer file.
"""

import ctypes
import fcntl
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from placement.exceptions import Unavailable
from placement.read_model.columns import DamagedFile, WritableModel, decode_model, encode_model
from placement.read_model.follower import ModelState, without_collection

LOG = logging.getLogger(__name__)

INTERVAL: Final = 300.0
"""Minimum seconds between two writes; a new worker reads later changes from the database."""
# the same worker should write the file each time: Python counts references to each encoded object, so this
# worker no longer shares the memory of these objects with others
PRECEDENCE: Final = 60.0
"""Seconds for which other workers leave a due write to the worker that has written the present file."""
# the writer works only for a small share of the time, because it competes with requests for the interpreter
_SHARE: Final = 4
"""Seconds that the thread of the writer sleeps for each second of its work."""
_MAX_SIZE: Final = 1 << 30
"""Maximum size of the file in bytes, enough for a few million providers."""


class ModelFile:
    """The file of a read model.

    :param path: the path of the file; the workers need permission to write in its folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> bytes:
        """Read the whole file.

        :raises OSError: the file cannot be read; FileNotFoundError if it does not exist.
        :raises DamagedFile: another user may have written the file, or the file is too large.
        """
        # the flags refuse links and do not wait for pipes, because the folder may be writable for other users
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb", buffering=0) as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise DamagedFile("it is not a regular file, or another user can write to it")
            if found.st_size > _MAX_SIZE:
                raise DamagedFile(f"it is larger than {_MAX_SIZE} bytes")
            # the file is read and not mapped into memory, because this process would crash if another one
            # truncated a mapped file
            return file.read(found.st_size)

    def write(self, parts: Iterable[bytes]) -> int:
        """Replace the file; return the new size in bytes.

        If the write fails, the old file stays.

        :raises OSError: the file cannot be written, for instance because the disk is full.
        """
        new, size = f"{self.path}.new", 0
        # a worker that was killed may have left a temporary file
        with suppress(FileNotFoundError):
            os.unlink(new)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", buffering=0) as file:
                # the file is unbuffered, because a buffer would copy each of these large parts once more
                for part in parts:
                    size += len(part)
                    if size > _MAX_SIZE:
                        raise OSError(f"the model takes more than {_MAX_SIZE} bytes")
                    remaining = memoryview(part)
                    while remaining:
                        remaining = remaining[file.write(remaining) :]
                # the file is synced before the rename, so that after a power cut the file is either the
                # complete old or the complete new one
                os.fsync(fd)
            os.rename(new, self.path)
        except BaseException:
            # an error of the cleanup must not hide the original error
            with suppress(OSError):
                os.unlink(new)
            raise
        return size

    def discard(self) -> None:
        """Remove the file, so that no other worker starts from it."""
        with suppress(OSError):
            os.unlink(self.path)

    def written_at(self) -> float:
        """Return when the file was last written, in seconds since 1970.

        The result is minus infinity if there is no file.
        """
        try:
            return os.stat(self.path).st_mtime
        except OSError:
            return -math.inf

    @contextmanager
    def try_lock(self) -> Iterator[bool]:
        """Try to lock the file for writing until the context ends; yield whether this has succeeded.

        :raises OSError: the folder does not exist, or is not writable.
        """
        # the kernel releases the lock of a worker that dies
        fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)


class ModelFileWriter:
    """Writes the model of a worker periodically, in its own thread, unless another worker has done so.

    :param model: a function that returns a copy of the current model.
    """

    def __init__(self, file: ModelFile, model: Callable[[], WritableModel]) -> None:
        self._file = file
        self._model = model
        # the time is monotonic, so that a change of the system clock does not stop the writes for hours
        self._not_before = -math.inf
        self._busy = False
        #: the time of the last write by this worker, by the file system
        self._written_at = -math.inf

    def start_if_due(self) -> None:
        """Start a write if enough time has passed since the last one.

        The worker calls this method after an update of the model, in one thread at a time.
        """
        if self._busy or time.monotonic() < self._not_before:
            return
        self._busy = True
        try:
            # the thread is a daemon, because the process may end at any time, and the rename keeps the file
            # complete
            threading.Thread(target=self._run, name="write model", daemon=True).start()
        except RuntimeError as error:  # the system allows no further thread
            self._note_end()
            LOG.warning("The model file %s is not written this time: %s", self._file.path, error)

    def _run(self) -> None:
        try:
            self.write()
        except Unavailable as error:
            LOG.debug("The model file is not written now: %s", error)
        except OSError as error:
            LOG.warning(
                "The model file %s cannot be written, so workers may start more slowly; "
                "next attempt in %g seconds: %s",
                self._file.path,
                INTERVAL,
                error,
            )
        except Exception:
            LOG.exception("The model file %s cannot be written", self._file.path)
        finally:
            self._note_end()

    def _note_end(self) -> None:
        # the time is set after a failure, too, because frequent attempts do not help, for instance on a full
        # disk
        self._not_before = time.monotonic() + INTERVAL
        self._busy = False

    def write(self) -> None:
        """Write the file, unless another worker writes it or has written it recently.

        :raises OSError: the file cannot be written.
        :raises placement.exceptions.Unavailable: the model is not up to date.
        """
        with self._file.try_lock() as alone:
            written_at = self._file.written_at()
            due = INTERVAL if written_at == self._written_at else INTERVAL + PRECEDENCE
            # a time in the future results from a wrong clock and is ignored
            if not alone or 0 <= time.time() - written_at < due:
                return
            pace = _WriterPace()
            size = self._file.write(encode_model(self._model(), pace.pause))
            self._written_at = self._file.written_at()
        LOG.info("Wrote the model file %s: %d bytes, %.2f s of work", self._file.path, size, pace.worked)


class _WriterPace:
    """Pauses the writing thread, so that requests have the processor most of the time."""

    def __init__(self) -> None:
        self.worked = 0.0
        self._began = time.thread_time()

    def pause(self) -> None:
        """Sleep for a multiple (:data:`_SHARE`) of the work time since the last call."""
        here = time.thread_time() - self._began
        self.worked += here
        time.sleep(_SHARE * here)
        self._began = time.thread_time()


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
    for name in snapshot.by_class:
        snapshot.free_index(name)
    for bucket in state.stamps:
        state.bucket_fingerprint(bucket)


def _return_free_memory() -> None:
    """Return the memory of the decoded file and of dropped objects to the kernel."""
    # only the C library of GNU has this function, and its heap would stay 70 MB larger for 250,000 providers
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
