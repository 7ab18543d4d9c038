"""Notes about evictions that operators have ordered. After a crash, the next run continues them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.model.messages import full_name
from compute_agent.report import host_notes
from compute_agent.report.host_notes import HostNote

_VERSION: Final = 1
_MAX_PID: Final = 1 << 22
"""The kernel's limit of process ids on 64-bit hosts."""


@dataclass(frozen=True, slots=True)
class EvictionNote(HostNote):
    """An eviction by an operator's command that has not ended.

    :ivar pid: the main process of the guest, and ``boot`` the id of the boot in which it ran. If the guest
        has been started again since, it is not evicted.
    """

    uuid: str
    name: str
    driver: str
    pid: int
    boot: str

    def __str__(self) -> str:
        return full_name(self.name, self.uuid)


def dump_notes(notes: Iterable[EvictionNote], machine: str = "") -> bytes:
    """The content of the file of notes; see :func:`compute_agent.report.host_notes.dump_notes`."""
    return host_notes.dump_notes(
        _VERSION,
        notes,
        machine,
        lambda note: {
            "uuid": note.uuid,
            "name": note.name,
            "driver": note.driver,
            "pid": note.pid,
            "boot": note.boot,
        },
    )


def parse_notes(content: bytes) -> Mapping[str, EvictionNote]:
    """The notes in a file; see :func:`compute_agent.report.host_notes.parse_notes`."""
    return host_notes.parse_notes(_VERSION, content, _read_row)


def _read_row(guest_uuid: str, row: Any) -> EvictionNote:
    return EvictionNote(
        guest_uuid,
        kept_json.text(row["name"]),
        kept_json.text(row["driver"]),
        int(kept_json.read_number(row["pid"], _MAX_PID)),
        kept_json.text(row["boot"]),
        machine=kept_json.text(row["machine"]),
    )
