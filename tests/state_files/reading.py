"""The readers of state files, and their results as plain values."""

import dataclasses
import enum
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from compute_agent.drivers.processes.records import parse_record
from compute_agent.events.store import read_events
from compute_agent.fleet import configuration, revision
from compute_agent.inventory import cpu_pools, host_identity, offline_cpus, provider_tree
from compute_agent.isolation import originals, osnoise
from compute_agent.loops import fleet
from compute_agent.monitoring.history import SampleHistory
from compute_agent.monitoring.samples import FILE as SAMPLES_FILE
from compute_agent.pipeline import guest_settings, state
from compute_agent.reclaim import collectors, offers
from compute_agent.schedules import run_notes
from compute_agent.throttling import state_file
from compute_agent.usage import week_uses
from tests.compute_agent.inventory.machines import machine
from tests.state_files.writing import NOW

RECORDED: Final = Path(__file__).parent
EXPECTED: Final = "expected.json"
_KEPT: Final = ("*.json", "*.jsonl", "*.conf", "*.db", "compute_id", "provider_name")

_ROOT_ONLY: Final = provider_tree.ProviderTree((provider_tree.ProviderNode("root", "root", None),))
_TOPOLOGY: Final = machine(nodes=1, cores=8, threads=1)
"""Of a host with the CPUs of all recorded pools."""
_PARSERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    state_file.FILE_NAME: lambda content: state_file.parse_state(content, NOW),
    week_uses.FILE: week_uses.USES_FORMAT.parse,
    offers.FILE: offers.ZONES_FORMAT.parse,
    offers.MEMORY_FILE: offers.ZONES_FORMAT.parse,
    offers.STOLEN_FILE: offers.RESERVES_FORMAT.parse,
    collectors.FILE: collectors.CLASSES_FORMAT.parse,
    originals.ORIGINALS_FILE: originals.parse_originals,
    configuration.KEPT_FILE: lambda content: (revision.read(content), content.decode()),
}

READERS: Final[Mapping[str, Callable[[Path], Any]]] = {
    "state.json": lambda folder: state.parse((folder / "state.json").read_bytes()),
    guest_settings.FILE_NAME: lambda folder: _read_settings(folder / guest_settings.FILE_NAME),
    offline_cpus.FILE_NAME: offline_cpus.recall_topology,
    "events.jsonl": lambda folder: read_events(folder / "events.jsonl"),
    "guests": lambda folder: {
        path.stem: parse_record(json.loads(path.read_text())) for path in folder.glob("guests/*.json")
    },
    host_identity.UUID_FILE: host_identity.look_up,
    SAMPLES_FILE: lambda folder: SampleHistory(folder / SAMPLES_FILE).latest_samples(),
    osnoise.ORIGINAL_FILE: lambda folder: osnoise.read_kept(folder / osnoise.ORIGINAL_FILE),
    fleet.FILE: lambda folder: fleet.read_applied(folder / fleet.FILE),
    cpu_pools.FILE_NAME: lambda folder: cpu_pools.recall_pools(folder, _ROOT_ONLY, _TOPOLOGY),
    **{
        name: lambda folder, name=name: run_notes.RunNotesFile(folder / name).kept_notes
        for name in (run_notes.COOKIES_FILE, run_notes.PRIORITIES_FILE)
    },
    **{
        name: lambda folder, name=name, parse=parse: parse((folder / name).read_bytes())
        for name, parse in _PARSERS.items()
    },
}
"""Readers of a state folder by the name of their file."""


def copy_state(source: Path, target: Path) -> None:
    """Copy the state files of a folder, with the modes that the agent requires."""
    for pattern in (*_KEPT, "guests/*.json"):
        for path in source.glob(pattern):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            shutil.copyfile(path, copy)
            copy.chmod(0o600)
    (target / EXPECTED).unlink(missing_ok=True)


def read_state(folder: Path) -> dict[str, Any]:
    """Return the content of each state file as plain values."""
    read = {name: _plain(reader(folder)) for name, reader in READERS.items()}
    return dict(json.loads(json.dumps(read)))


def has_all(found: Any, recorded: Any) -> bool:
    """Whether a value has all that was recorded; objects may have more fields."""
    if isinstance(recorded, dict):
        return isinstance(found, dict) and all(
            key in found and has_all(found[key], value) for key, value in recorded.items()
        )
    if isinstance(recorded, list):
        return isinstance(found, list) and len(found) == len(recorded) and all(map(has_all, found, recorded))
    return bool(found == recorded)


def _read_settings(path: Path) -> dict[str, Any]:
    found = guest_settings.ManualSettings(path)
    return {uuid: found.values(uuid) for uuid in found.guests}


def _plain(value: Any) -> Any:
    match value:
        case enum.Enum():
            return value.value
        case Mapping():
            return {str(_plain(key)): _plain(each) for key, each in value.items()}
        case frozenset() | set():
            return sorted(map(_plain, value), key=repr)
        case tuple() | list():
            return [_plain(each) for each in value]
        case Path():
            return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value
