"""The one place that touches files of a mount, and the error it raises."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

STATUS_FILE: Final = "info/last_cmd_status"


class ResctrlError(OSError):
    """The kernel refused an operation.

    ``errno`` is the kernel's, ``status`` the text of info/last_cmd_status.

    ``status`` is empty where the kernel gave no reason of its own.
    """

    def __init__(self, number: int, path: str, status: str = "") -> None:
        super().__init__(number, os.strerror(number), path)
        self.status = status

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}: {self.status}" if self.status else text


def read_text(path: Path) -> str:
    """The content of a file of the kernel; empty where it is missing or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Filesystem:
    """A mounted resctrl (or a copy of one, to read). Paths are relative to its root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = str(root)

    def read(self, path: str) -> str:
        """The text of a file.

        :raises ResctrlError:
        """
        try:
            with open(f"{self._folder}/{path}", "rb", buffering=0) as file:
                return file.readall().decode(errors="replace")
        except OSError as error:
            raise self._error(error, path) from error

    def read_optional(self, path: str) -> str | None:
        """The text of a file without blanks at its ends; None where it is missing or cannot be read."""
        try:
            return self.read(path).strip()
        except ResctrlError:
            return None

    def write(self, path: str, text: str) -> None:
        """Write to a file of the kernel, at once as the kernel needs it.

        :raises ResctrlError:
        """
        try:
            handle = os.open(self.root / path, os.O_WRONLY)
        except OSError as error:
            raise self._error(error, path) from error
        try:
            os.write(handle, text.encode())
        except OSError as error:
            raise self._error(error, path, self._status()) from error
        finally:
            os.close(handle)

    def make(self, path: str) -> None:
        """Make a group.

        :raises ResctrlError:
        """
        before = self._status()
        try:
            (self.root / path).mkdir()
        except OSError as error:
            # Unlike writing, this adds to the status of the last command; and mostly it has nothing to say.
            raise self._error(error, path, self._status().removeprefix(before)) from error

    def remove(self, path: str) -> None:
        """Remove a group; its tasks go to its parent.

        :raises ResctrlError:
        """
        try:
            (self.root / path).rmdir()
        except OSError as error:
            raise self._error(error, path) from error

    def folders(self, path: str = "") -> tuple[str, ...]:
        """Names of the folders in a folder, sorted; none where it does not exist."""
        try:
            with os.scandir(self.root / path) as entries:
                return tuple(sorted(entry.name for entry in entries if entry.is_dir()))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._error(error, path) from error

    def _status(self) -> str:
        try:
            return self.read(STATUS_FILE)
        except ResctrlError:
            return ""

    def _error(self, error: OSError, path: str, status: str = "") -> ResctrlError:
        lines = [line for line in status.splitlines() if line not in ("", "ok")]
        return ResctrlError(error.errno or errno.EIO, str(self.root / path), "; ".join(lines))
