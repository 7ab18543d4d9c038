"""The files of a resctrl mount. No other module reads or writes these files.

A method, and each function of this package that takes a :class:`ResctrlFilesystem`, raises ResctrlError if a
file cannot be read, or if the kernel refuses a change. The docstrings of exceptions from this rule say so.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

STATUS_FILE: Final = "info/last_cmd_status"


class ResctrlError(OSError):
    """The kernel refused an operation on the mount.

    :ivar errno: the kernel's error number.
    :ivar status: the text of info/last_cmd_status; empty if the kernel gave no reason.
    """

    def __init__(self, number: int, path: str, status: str = "") -> None:
        super().__init__(number, os.strerror(number), path)
        self.status = status

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}: {self.status}" if self.status else text


def read_text(path: Path) -> str:
    """The content of a kernel file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class ResctrlFilesystem:
    """A mounted resctrl or a read-only copy; paths are relative to its root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # The folder is a string and no Path: read_file() joins it with the path of each file of each group
        # once in a round.
        self._folder = str(root)

    def read_file(self, path: str) -> str:
        """The text of a file."""
        try:
            # The file is read with a single call, so it needs no buffer.
            with open(f"{self._folder}/{path}", "rb", buffering=0) as file:
                return file.readall().decode(errors="replace")
        except OSError as error:
            raise self._make_error(error, path) from error

    def read_optional(self, path: str) -> str | None:
        """The text of a file without surrounding blanks; None if the kernel does not have or show it."""
        try:
            return self.read_file(path).strip()
        except ResctrlError:
            return None

    def write_file(self, path: str, text: str) -> None:
        """Write a text with one system call, because the kernel parses the text of each call separately."""
        try:
            # The flag O_CREAT is left out, so that a wrong path is an error and makes no file.
            handle = os.open(self.root / path, os.O_WRONLY)
        except OSError as error:
            raise self._make_error(error, path) from error
        try:
            # No write is partial: kernfs accepts or refuses a text of up to a page as a whole.
            os.write(handle, text.encode())
        except OSError as error:
            # The status is read at once, because the next command on the mount, by any process, replaces the
            # text.
            raise self._make_error(error, path, self._read_status()) from error
        finally:
            os.close(handle)

    def make_folder(self, path: str) -> None:
        """Make the folder of a group."""
        before = self._read_status()
        try:
            (self.root / path).mkdir()
        except OSError as error:
            # A write replaces the status of the previous command. mkdir only appends to this status, and
            # mostly appends nothing.
            raise self._make_error(error, path, self._read_status().removeprefix(before)) from error

    def remove_folder(self, path: str) -> None:
        """Remove the folder of a group. The kernel moves its tasks to the group above it."""
        try:
            (self.root / path).rmdir()
        except OSError as error:
            raise self._make_error(error, path) from error

    def list_folders(self, path: str = "") -> tuple[str, ...]:
        """The names of the folders in a folder, sorted; none if that folder does not exist."""
        try:
            with os.scandir(self.root / path) as entries:
                return tuple(sorted(entry.name for entry in entries if entry.is_dir()))
        except FileNotFoundError:
            # Without monitoring there is no folder mon_groups, and a group may have been removed meanwhile.
            return ()
        except OSError as error:
            raise self._make_error(error, path) from error

    def _read_status(self) -> str:
        try:
            return self.read_file(STATUS_FILE)
        except ResctrlError:
            return ""

    def _make_error(self, error: OSError, path: str, status: str = "") -> ResctrlError:
        # The kernel writes "ok" if the last command left no message.
        lines = [line for line in status.splitlines() if line not in ("", "ok")]
        # An OSError that Python itself raises has no errno.
        return ResctrlError(error.errno or errno.EIO, str(self.root / path), "; ".join(lines))
