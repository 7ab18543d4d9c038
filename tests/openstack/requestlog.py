"""Requests to Placement with their users, from its log."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LINE: Final = re.compile(
    r' placement\.requestlog \[\S+ \S+ (?P<user>\S+) .*?\] \S+ "(?P<method>\S+) (?P<uri>\S+)"'
    r" status: (?P<status>\d+) "
)


@dataclass(frozen=True)
class LoggedRequest:
    """A request.

    :param user: the id of its user
    """

    user: str
    method: str
    path: str
    status: int

    @property
    def writes(self) -> bool:
        """Whether it is a write."""
        return self.method != "GET"


def asked(log: Path) -> list[LoggedRequest]:
    """Return all requests so far."""
    return [
        LoggedRequest(line["user"], line["method"], line["uri"].partition("?")[0], int(line["status"]))
        for line in _LINE.finditer(log.read_text(errors="replace"))
    ]
