"""The file with the originals of masks: their contents before the agent's first write.

The file is written before any mask is changed, so the next agent finds the originals even if this agent is
killed. The file is valid for one boot, because a reboot restores all masks.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.files import put_aside, read_own, write_durably
from compute_agent.isolation.facts import MASK_PATH, parse_mask_text
from compute_agent.isolation.irqbalance import BALANCER_KEY, KeptBan
from compute_agent.isolation.partitions import PARTITION_PATH, is_partition_text
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet

LOG = logging.getLogger(__name__)

ORIGINALS_FILE: Final = "isolation.json"

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class OriginalMask:
    """The original of a mask: its CPUs and text, the names that identify the mask, and the agent's writes.

    ``written`` has the sets of CPUs that the mask can have because of the agent. Usually this is the set of
    the last write. Until the agent has read this write back, ``written`` also has the set of the previous
    write. An original is *inferred* if the agent has found its default mask in a new interrupt, and has not
    written another mask there yet.
    """

    cpus: CpuSet
    text: str
    names: str = ""
    written: tuple[CpuSet, ...] = ()
    is_inferred: bool = False


@dataclass(frozen=True, slots=True)
class OriginalMasks:
    """The originals of all masks of one boot.

    :ivar boot: the id of the boot.
    :ivar masks: the originals of masks, by path.
    :ivar quiet: the CPUs that were quiet at the last write.
    :ivar partitioned: the CPUs that were in partitions at the last write.
    :ivar groups: the original contents of the partition files of control groups, by path.
    :ivar bans: the bans of irqbalance processes, by key.
    """

    boot: str = ""
    quiet: CpuSet = frozenset()
    masks: Mapping[str, OriginalMask] = field(default_factory=dict)
    partitioned: CpuSet = frozenset()
    groups: Mapping[str, str] = field(default_factory=dict)
    bans: Mapping[str, KeptBan] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore."""
        return not (self.masks or self.groups or self.bans)


class OriginalsFile:
    """Keeps the original contents of masks in a file, which is read at first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: OriginalMasks | None = None
        self._damaged = False

    @property
    def kept_originals(self) -> OriginalMasks:
        """The original contents in the file; empty if the file is absent or damaged.

        :raises UnsafeFileError: other users could have written the file.
        :raises OSError: the file cannot be read.
        """
        if self._kept is None:
            self._kept = OriginalMasks()
            try:
                content = read_own(self._path)
            except FileNotFoundError:
                return self._kept
            except OSError:
                self._kept = None
                raise
            try:
                self._kept = parse_originals(content)
            except ValueError as error:
                self._damaged = True
                LOG.error(
                    "%s cannot be used: %s; the agent cannot restore the CPU masks that it changed before,"
                    " and a reboot resets them",
                    self._path,
                    error,
                )
        return self._kept

    def keep_originals(self, originals: OriginalMasks) -> None:
        """Replace the content of the file. A damaged file is first renamed.

        :raises OSError: the file cannot be read, renamed or written.
        """
        if originals == self.kept_originals:
            return
        if self._damaged:
            with contextlib.suppress(FileNotFoundError):
                put_aside(self._path)
            self._damaged = False
        write_durably(self._path, dump_originals(originals))
        self._kept = originals


def dump_originals(originals: OriginalMasks) -> bytes:
    """The content of the file with the original masks."""
    data = {
        "boot": originals.boot,
        "quiet": cpuset.format(originals.quiet),
        "masks": {
            path: {
                "text": mask.text,
                "names": mask.names,
                "written": [cpuset.format(cpus) for cpus in mask.written],
                "inferred": mask.is_inferred,
            }
            for path, mask in originals.masks.items()
        },
        "partitioned": cpuset.format(originals.partitioned),
        "groups": dict(originals.groups),
        "bans": {
            key: {"base": cpuset.format(ban.base), "written": cpuset.format(ban.written)}
            for key, ban in originals.bans.items()
        },
    }
    return kept_json.dump(_VERSION, kept_json.checked_content(data))


def parse_originals(content: bytes) -> OriginalMasks:
    """The originals in a file's content.

    :raises ValueError: the content has another form.
    """
    return kept_json.parse(_VERSION, content, lambda found: _read_originals(kept_json.checked_data(found)))


def _read_originals(data: Any) -> OriginalMasks:
    masks = {str(path): _read_original(str(path), one) for path, one in data["masks"].items()}
    # The file of an older release lacks some keys, because that release made no partitions and gave
    # irqbalance no bans.
    partitioned = cpuset.parse(kept_json.text(data.get("partitioned", "")))
    groups = {str(path): _read_text(str(path), text) for path, text in data.get("groups", {}).items()}
    bans = {str(key): _read_ban(str(key), ban) for key, ban in data.get("bans", {}).items()}
    return OriginalMasks(
        kept_json.text(data["boot"]), cpuset.parse(data["quiet"]), masks, partitioned, groups, bans
    )


def _read_ban(key: str, ban: Any) -> KeptBan:
    if BALANCER_KEY.fullmatch(key) is None:
        raise ValueError(f"{key!r} is not a socket of irqbalance")
    return KeptBan(cpuset.parse(kept_json.text(ban["base"])), cpuset.parse(kept_json.text(ban["written"])))


def _read_text(path: str, text: Any) -> str:
    if PARTITION_PATH.fullmatch(path) is None or "/../" in path or not is_partition_text(path, text):
        raise ValueError(f"{path!r} is not a file of a partition")
    return kept_json.text(text)


def _read_original(path: str, one: Any) -> OriginalMask:
    # The agent writes to these paths as root, so paths that are not those of masks are refused.
    if MASK_PATH.fullmatch(path) is None or "/../" in path:
        raise ValueError(f"{path!r} is not a mask")
    text = kept_json.text(one["text"])
    written = tuple(cpuset.parse(kept_json.text(cpus)) for cpus in one["written"])
    # files of older releases lack this key
    is_inferred = one.get("inferred", False) is True
    return OriginalMask(parse_mask_text(path, text), text, kept_json.text(one["names"]), written, is_inferred)
