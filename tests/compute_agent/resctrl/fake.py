"""A fake resctrl tree in a folder. As far as plain files allow, it refuses the same writes as the kernel.

All state is in the files, so a captured tree can be used without a change. The checks and error texts are
those of Linux 6.12 (arch/x86/kernel/cpu/resctrl). The tree lacks three features: threads that inherit a group
from their creator, RMIDs that stay busy after their group is gone, and counters that count.
"""

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from compute_agent.resctrl import schemata
from compute_agent.resctrl.filesystem import STATUS_FILE, ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import group_path

EVENTS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")

NAME_WIDTH = 6
"""Names of resources are padded to the longest that the processor could have: L3CODE."""


@dataclass(frozen=True)
class FakeMachine:
    """The capabilities of a synthetic tree, by default those of a small Intel server. `mb` is the highest
    bandwidth value.
    """

    l3: tuple[int, ...] = (0, 1)
    ways: int = 16
    min_bits: int = 1
    shareable: int = 0xC000
    closids: int = 16
    sparse: bool = False
    cdp: bool = False
    mb: int = 100
    mb_ids: tuple[int, ...] | None = None
    mb_gran: int = 10
    mb_min: int = 10
    mb_closids: int = 8
    rmids: int = 128
    way_bytes: int = 2**20
    cpuinfo: str = "vendor_id\t: GenuineIntel\n"


INTEL = FakeMachine()
INTEL_CDP = FakeMachine(cdp=True, closids=8)
INTEL_MBPS = FakeMachine(mb=2**32 - 1)
AMD = FakeMachine(
    min_bits=0, shareable=0, sparse=True, mb=2048, mb_gran=1, mb_min=0, cpuinfo="vendor_id\t: AuthenticAMD\n"
)
ARM = FakeMachine(
    l3=(1, 17), ways=12, shareable=0, sparse=True, closids=32, mb_min=1, mb_gran=1, mb_closids=32,
    rmids=64, cpuinfo="CPU implementer\t: 0x41\n",
)  # fmt: skip


class FakeResctrl(ResctrlFilesystem):
    """Replaces the library's access to a mount, and acts as the kernel behind the mount."""

    def __init__(self, root: Path, dead: frozenset[int] = frozenset()) -> None:
        super().__init__(root)
        self.dead = set(dead)
        default = self._schemata("")
        self.caches = [name for name in default.lines if name in schemata.CACHE_RESOURCES]
        sizes = schemata.parse_sizes(self._text("size")) if (root / "size").exists() else {}
        self.way_bytes = {
            name: next(iter(sizes[name].values())) // self._full(name).bit_count()
            for name in self.caches
            if name in sizes
        }
        self.maximum = {
            name: max(values.values()) for name, values in default.lines.items() if name not in self.caches
        }
        if "mon_data" in os.listdir(root):
            (root / "mon_groups").mkdir(exist_ok=True)

    @classmethod
    def of(cls, machine: FakeMachine, root: Path) -> Self:
        """A new tree, as after a mount."""
        root.mkdir(parents=True)
        names = ("L3DATA", "L3CODE") if machine.cdp else ("L3",)
        full = (1 << machine.ways) - 1
        info = {
            name: {
                "cbm_mask": f"{full:x}",
                "min_cbm_bits": machine.min_bits,
                "shareable_bits": f"{machine.shareable:x}",
                "num_closids": machine.closids,
                "sparse_masks": int(machine.sparse),
            }
            for name in names
        }
        lines = {}
        if machine.mb:
            info["MB"] = {
                "num_closids": machine.mb_closids,
                "min_bandwidth": machine.mb_min,
                "bandwidth_gran": machine.mb_gran,
                "delay_linear": int(machine.mb <= 100),
            }
            lines["MB"] = dict.fromkeys(machine.mb_ids or machine.l3, machine.mb)
        lines |= {name: dict.fromkeys(machine.l3, full) for name in names}
        info["L3_MON"] = {"num_rmids": machine.rmids, "mon_features": "\n".join(EVENTS)}
        for name, values in info.items():
            (root / "info" / name).mkdir(parents=True)
            for file, value in values.items():
                (root / "info" / name / file).write_text(f"{value}\n")
        sizes = {
            name: {d: v if name == "MB" else machine.way_bytes * machine.ways for d, v in values.items()}
            for name, values in lines.items()
        }
        (root / "schemata").write_text(
            "".join(
                f"{name:>{NAME_WIDTH}}:{line.partition(':')[2]}\n"
                for name, line in zip(lines, str(schemata.Schemata(lines)).splitlines(), strict=True)
            )
        )
        (root / "size").write_text(
            "".join(f"{n}:" + ";".join(f"{d}={v}" for d, v in vs.items()) + "\n" for n, vs in sizes.items())
        )
        (root / "mode").write_text("shareable\n")
        (root / "tasks").write_text("1\n")
        (root / STATUS_FILE).write_text("ok\n")
        (root / "mon_groups").mkdir()
        fake = cls(root)
        fake._mon_data(root, machine.l3)
        fake._show("", fake._schemata(""))
        return fake

    @classmethod
    def copied(cls, tree: Path, root: Path) -> Self:
        """A copy of a captured tree."""
        shutil.copytree(tree, root)
        return cls(root)

    # The library's side

    def write_file(self, path: str, text: str) -> None:
        group, _, name = path.rpartition("/")
        if not (self.root / path).exists():
            raise self._refused(errno.ENOENT, path)
        if name == "schemata" and not text.endswith("\n"):
            raise self._refused(errno.EINVAL, path)
        self._say("ok")
        if name == "schemata":
            self._write_schemata(group, text)
        elif name == "tasks":
            self._write_task(group, text)
        elif name == "mode":
            self._write_mode(group, text)
        else:
            raise self._refused(errno.EACCES, path)

    def make_folder(self, path: str) -> None:
        folder = self.root / path
        parent = folder.parent
        if folder.exists():
            raise self._refused(errno.EEXIST, path)
        if not parent.exists():
            raise self._refused(errno.ENOENT, path)
        monitoring = parent.name == "mon_groups"
        if parent != self.root and not monitoring:
            raise self._refused(errno.EPERM, path)
        groups = self._groups()
        rmids = self._number("L3_MON", "num_rmids") if (self.root / "info/L3_MON").exists() else None
        if rmids is not None and self._rmids_taken() >= rmids:
            raise self._refused(errno.ENOSPC, path, "Out of RMIDs", added=True)
        if not monitoring and len(groups) >= self._closids():
            raise self._refused(errno.ENOSPC, path, "Out of CLOSIDs", added=True)
        values = None if monitoring else self._initial()
        folder.mkdir()
        (folder / "tasks").write_text("")
        if rmids is not None:
            ids = [int(name[-2:]) for name in os.listdir(self.root / "mon_data")]
            self._mon_data(folder, ids)
            if not monitoring:
                (folder / "mon_groups").mkdir()
        if values is not None:
            (folder / "mode").write_text("shareable\n")
            self._show(path, values)

    def remove_folder(self, path: str) -> None:
        folder = self.root / path
        if not folder.is_dir():
            raise self._refused(errno.ENOENT, path)
        monitoring = folder.parent.name == "mon_groups"
        if not monitoring and (folder.parent != self.root or path in ("info", "mon_data", "mon_groups")):
            raise self._refused(errno.EPERM, path)
        tasks = self._tasks(path)
        shutil.rmtree(folder)
        if not monitoring:
            self._set_tasks("", self._tasks("") + [task for task in tasks if task not in self._tasks("")])

    # The kernel

    def _write_schemata(self, group: str, text: str) -> None:
        path = group_path(group, "schemata")
        now = self._schemata(group)
        new: dict[str, dict[int, int]] = {}
        for line in text[:-1].split("\n"):
            name, colon, values = line.partition(":")
            name = name.strip()
            if not colon:
                raise self._refused(errno.EINVAL, path, "Missing ':'")
            if not values:
                raise self._refused(errno.EINVAL, path, f"Missing '{name}' value")
            if name not in now.lines:
                status = f"Unknown or unsupported resource name '{name}'"
                raise self._refused(errno.EINVAL, path, status)
            for part in filter(None, values.split(";")):
                domain, equals, value = part.partition("=")
                if not equals or not domain.isdigit():
                    raise self._refused(errno.EINVAL, path, "Missing '=' or non-numeric domain")
                if now.get_value(name, int(domain)) is None:
                    raise self._refused(errno.EINVAL, path)
                if int(domain) in new.setdefault(name, {}):
                    raise self._refused(errno.EINVAL, path, f"Duplicate domain {int(domain)}")
                check = self._cbm if name in self.caches else self._bandwidth
                new[name][int(domain)] = check(group, path, name, int(domain), value.strip())
        self._show(group, now.updated_with(schemata.Schemata(new)))

    def _cbm(self, group: str, path: str, name: str, domain: int, text: str) -> int:
        if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]+", text):
            raise self._refused(errno.EINVAL, path, f"Non-hex character in the mask {text}")
        mask = int(text, 16)
        least = self._number(name, "min_cbm_bits")
        if (least > 0 and mask == 0) or mask > self._full(name):
            raise self._refused(errno.EINVAL, path, "Mask out of range")
        lowest = mask & ~(mask + (mask & -mask))
        sparse = self._optional(name, "sparse_masks") == "1"
        if mask != lowest and not sparse:
            raise self._refused(errno.EINVAL, path, f"The mask {mask:x} has non-consecutive 1-bits")
        if lowest.bit_count() < least:
            raise self._refused(errno.EINVAL, path, f"Need at least {least} bits in the mask")
        for other in self._groups():
            if other == group or not (self._schemata(other).get_value(name, domain) or 0) & mask:
                continue
            if self._mode(other) == "exclusive":
                raise self._refused(errno.EINVAL, path, "Overlaps with exclusive group")
            if self._mode(group) == "exclusive":
                raise self._refused(errno.EINVAL, path, "Overlaps with other group")
        return mask

    def _bandwidth(self, group: str, path: str, name: str, domain: int, text: str) -> int:
        if not text.isdigit():
            raise self._refused(errno.EINVAL, path, f"Invalid MB value {text}")
        value, least, most = int(text), self._number(name, "min_bandwidth"), self.maximum[name]
        if most == 2**32 - 1:
            return value
        if not least <= value <= most:
            raise self._refused(errno.EINVAL, path, f"MB value {value} out of range [{least},{most}]")
        step = self._number(name, "bandwidth_gran")
        return -(-value // step) * step

    def _write_task(self, group: str, text: str) -> None:
        path = group_path(group, "tasks")
        if not text.strip().isdigit():
            raise self._refused(errno.EINVAL, path, f"Task list parsing error pid {text.strip()}")
        task = int(text) or os.getpid()
        if task in self.dead or not Path(f"/proc/{task}").exists():
            raise self._refused(errno.ESRCH, path, f"No task {task}\nError while processing task {task}")
        parent = group.rpartition("mon_groups/")[0].rstrip("/") if "mon_groups/" in group else None
        if parent is not None and task not in self._tasks(parent):
            status = f"Can't move task to different control group\nError while processing task {task}"
            raise self._refused(errno.EINVAL, path, status)
        for other in self._groups():
            members = [other] if other != parent else []
            folder = group_path(other, "mon_groups")
            members += [f"{folder}/{name}" for name in self.list_folders(folder)]
            for one in members:
                self._set_tasks(one, [other_task for other_task in self._tasks(one) if other_task != task])
        self._set_tasks(group, [*self._tasks(group), task])

    def _write_mode(self, group: str, text: str) -> None:
        mode = text.strip()
        path = group_path(group, "mode")
        if mode not in ("shareable", "exclusive"):
            raise self._refused(errno.EINVAL, path, "Unknown or unsupported mode")
        if mode == "exclusive":
            mine = self._schemata(group)
            for name in self.caches:
                for domain, mask in mine.lines[name].items():
                    shareable = int(self._optional(name, "shareable_bits") or "0", 16)
                    others = [
                        self._schemata(o).get_value(name, domain) or 0 for o in self._groups() if o != group
                    ]
                    if mask & shareable or any(mask & other for other in others):
                        raise self._refused(errno.EINVAL, path, "Schemata overlaps")
        (self.root / path).write_text(f"{mode}\n")

    def _initial(self) -> schemata.Schemata:
        """The ways that a new group may fill: all ways that are not exclusive to another group."""
        lines: dict[str, dict[int, int]] = {}
        for name, domain, value in self._schemata(""):
            if name not in self.caches:
                lines.setdefault(name, {})[domain] = self.maximum[name]
                continue
            taken = 0
            for group in self._groups():
                if self._mode(group) == "exclusive":
                    taken |= self._schemata(group).get_value(name, domain) or 0
            mask = self._full(name) & ~taken
            mask &= ~(mask + (mask & -mask))  # in one piece, also where holes are allowed
            if mask.bit_count() < self._number(name, "min_cbm_bits"):
                raise self._refused(errno.ENOSPC, "", f"No space on {name}:{domain}", added=True)
            lines.setdefault(name, {})[domain] = mask if value is not None else 0
        return schemata.Schemata(lines)

    def _closids(self) -> int:
        return min(self._number(name, "num_closids") for name in self._schemata("").lines)

    # Files

    def _groups(self) -> list[str]:
        return ["", *(name for name in self.list_folders() if (self.root / name / "schemata").exists())]

    def _rmids_taken(self) -> int:
        return sum(1 + len(self.list_folders(group_path(group, "mon_groups"))) for group in self._groups())

    def _show(self, group: str, values: schemata.Schemata) -> None:
        """Write the files schemata and size, padded as by the kernel."""
        names = len(self._text("schemata").partition(":")[0])
        data = max(
            [-(-self._full(name).bit_length() // 4) for name in self.caches]
            + [len(str(most)) if most <= 2048 else 3 for most in self.maximum.values()]
        )
        folder = self.root / group
        folder.joinpath("schemata").write_text(
            "".join(
                f"{name:>{names}}:"
                + ";".join(
                    f"{d}={v:0{data}x}" if name in self.caches else f"{d}={v:{data}d}"
                    for d, v in line.items()
                )
                + "\n"
                for name, line in values.lines.items()
            )
        )
        folder.joinpath("size").write_text(
            "".join(
                f"{name:>{names}}:"
                + ";".join(
                    f"{d}={self.way_bytes[name] * v.bit_count() if name in self.caches else v}"
                    for d, v in line.items()
                )
                + "\n"
                for name, line in values.lines.items()
                if name in self.way_bytes or name not in self.caches
            )
        )

    def _mon_data(self, folder: Path, ids) -> None:
        for cache in ids:
            data = folder / "mon_data" / f"mon_L3_{cache:02}"
            data.mkdir(parents=True)
            for event in EVENTS:
                (data / event).write_text("0\n")

    def _schemata(self, group: str) -> schemata.Schemata:
        return schemata.parse_schemata(self._text(group_path(group, "schemata")))

    def _mode(self, group: str) -> str:
        path = self.root / group / "mode"
        return path.read_text().strip() if path.exists() else "shareable"

    def _tasks(self, group: str) -> list[int]:
        return [int(line) for line in self._text(group_path(group, "tasks")).split()]

    def _set_tasks(self, group: str, tasks: list[int]) -> None:
        (self.root / group / "tasks").write_text("".join(f"{task}\n" for task in tasks))

    def _full(self, name: str) -> int:
        return int(self._text(f"info/{name}/cbm_mask"), 16)

    def _number(self, name: str, file: str) -> int:
        return int(self._text(f"info/{name}/{file}"))

    def _optional(self, name: str, file: str) -> str | None:
        path = self.root / "info" / name / file
        return path.read_text().strip() if path.exists() else None

    def _text(self, path: str) -> str:
        return (self.root / path).read_text()

    def _say(self, text: str) -> None:
        (self.root / STATUS_FILE).write_text(f"{text}\n")

    def _refused(self, number: int, path: str, status: str = "", added: bool = False) -> ResctrlError:
        """The error to raise. Commands that do not clear the last status text append `added` to it."""
        if status:
            before = self._text(STATUS_FILE).removeprefix("ok\n") if added else ""
            self._say(before + status)
        return self._make_error(OSError(number, ""), path, status)
