"""A message bus with a systemd on it: D-Bus over a UNIX socket, real processes, and folders as groups.

It speaks the protocol of the bus to any number of clients, with jeepney's encoder. It knows the calls that
the agent makes, and takes values as systemd 252 does: it answers first, and writes to the groups afterwards.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import jeepney
from jeepney.low_level import HeaderFields, MessageType, Parser

from compute_agent.drivers.foreign.editor import HostFolders
from compute_agent.drivers.foreign.kernel_values import FILES as VALUE_FILES
from compute_agent.drivers.foreign.values import IDLE, INFINITY, LATENCY, RATES, DeviceLimits
from compute_agent.drivers.systemd.manager import MANAGER, MANAGER_PATH, PROPERTIES, SYSTEMD, UNIT
from compute_agent.drivers.systemd.unit_state import (
    DEVICE_PROPERTIES,
    SERVICE,
    SLICE,
    UNIT_DEFAULTS,
    decode_value,
    drop_in_name,
    encode_value,
    unit_kind,
    unit_of_path,
    unit_path,
)
from compute_agent.model import cpuset
from tests.compute_agent.cgroups import FILES

BUS = "org.freedesktop.DBus"


@dataclass
class FakeUnit:
    """A unit with its processes; a slice has the processes of the units in it."""

    name: str
    files: list[Path]
    values: dict = field(default_factory=lambda: dict(UNIT_DEFAULTS))
    """Properties. The limits of devices are by path."""
    active: str = "inactive"
    processes: list = field(default_factory=list)
    main_pid: int | None = None
    """The main process that systemd names; None: the first process."""
    group_path: str | None = None
    slice: str = "system.slice"
    load: str = "loaded"
    invocation: bytes = b""
    paths: dict = field(default_factory=dict)
    """The paths of devices for which there were limits, in their order."""
    slow_stop: bool = False
    """Whether only the main process ends at the request to stop."""

    @property
    def group(self):
        if self.group_path is not None:
            return self.group_path
        parts = slice_parts(self.name if unit_kind(self.name) == SLICE else self.slice)
        return "/" + "/".join(parts if parts[-1] == self.name else [*parts, self.name])

    def properties(self, interface):
        if interface == UNIT:
            paths = [str(path) for path in self.files]
            return {
                "Id": ("s", self.name),
                "LoadState": ("s", self.load),
                "ActiveState": ("s", self.active),
                "FragmentPath": ("s", paths[0] if paths else ""),
                "DropInPaths": ("as", paths[1:]),
                "InvocationID": ("ay", self.invocation),
            }
        assert interface == f"{SYSTEMD}.{unit_kind(self.name).capitalize()}"
        main = self.processes[0].pid if self.processes else 0
        is_service = unit_kind(self.name) == SERVICE
        return {
            **({"MainPID": ("u", main if self.main_pid is None else self.main_pid)} if is_service else {}),
            "ControlGroup": ("s", self.group if self.processes or self.active == "active" else ""),
            **{
                name: ("a(st)", list(value.pairs))
                if isinstance(value, DeviceLimits)
                else encode_value(name, value)
                for name, value in self.values.items()
            },
        }


class FakeSystemd:
    """The bus and systemd, in threads of this process."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "bus"
        self.folders = HostFolders(Path("/"), folder / "cgroup", folder / "run")
        self.units = {}
        self.calls = []
        """The members of the calls of the manager."""
        self.owner = ":1.0"
        self.version = "252.39-1~deb12u1"
        self.hangs = threading.Event()
        """While it is set, systemd answers no call."""
        self.ignores = set()
        """Properties that systemd confirms and does not write to the group."""
        self.refusals = {}
        """The names and texts of errors for the properties that systemd refuses."""
        self._clients = []
        self._serial = 0
        self._lock = threading.RLock()
        for name in ("units", "run/system.control", "run/transient", "cgroup"):
            (folder / name).mkdir(parents=True)
        (folder / "cgroup/cgroup.controllers").write_text("cpuset cpu io memory")
        self._server = None
        self.listen()

    # For tests

    def listen(self):
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen()
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def go_away(self):
        """The bus ends, with all connections."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.path.unlink()
        self.drop_clients()

    def drop_clients(self):
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self):
        for unit in self.units.values():
            for process in unit.processes:
                process.kill()
                process.wait()
        with contextlib.suppress(OSError):
            self.go_away()

    def write_file(self, path, text, mode=0o644):
        """A unit file or drop-in below the folder of units."""
        file = self.folder / "units" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def define(self, name, section="[X-ComputeAgent]\n", drop_ins=()):
        """A service that does not run; with ``section`` None, it is none of the agent's guests."""
        text = "[Unit]\nDescription=Test\n\n[Service]\nExecStart=/usr/bin/sleep 600\n\n" + (section or "")
        files = [self.write_file(name, text)]
        files += [self.write_file(f"{name}.d/{number}.conf", part) for number, part in enumerate(drop_ins)]
        unit = self.units[name] = FakeUnit(name, files)
        self._emit(MANAGER_PATH, MANAGER, "UnitNew", "so", (name, unit_path(name)))
        return unit

    def start(self, name, section="[X-ComputeAgent]\n", drop_ins=(), processes=1, slice="system.slice"):
        """Define a unit if it is new, and start its processes."""
        unit = self.units.get(name) or self.define(name, section, drop_ins)
        with self._lock:
            unit.slice = slice
            unit.processes = [subprocess.Popen(["sleep", "600"]) for _ in range(processes)]
            folder = self.folder_of(unit)
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in {**FILES, "memory.min": "0\n"}.items():
                (folder / file).write_text(text)
            self.list_processes(unit)
            self.realize(unit, unit.values)
            unit.active, unit.invocation = "active", os.urandom(16)
        self.changed(unit)
        return unit

    def list_processes(self, unit):
        pids = "".join(f"{process.pid}\n" for process in unit.processes)
        (self.folder_of(unit) / "cgroup.procs").write_text(pids)

    def stop(self, name, active="inactive"):
        """The processes of a service end."""
        unit = self.units[name]
        with self._lock:
            for process in unit.processes:
                process.kill()
                process.wait()
            unit.processes, unit.active = [], active
            shutil.rmtree(self.folder_of(unit), ignore_errors=True)
        self.changed(unit)

    def units_below(self, name):
        """The units in a slice, the innermost first."""
        group = self.units[name].group
        below = [unit for unit in self.units.values() if unit.group.startswith(f"{group}/")]
        return sorted(below, key=lambda unit: -unit.group.count("/"))

    def stop_slice(self, name):
        """systemd stops the units in a slice before the slice."""
        for unit in (*self.units_below(name), self.units[name]):
            self.stop(unit.name)

    def begin_stop(self, name):
        """The main process ends, and systemd waits for the other processes."""
        self.end_main(name)
        unit = self.units[name]
        unit.main_pid, unit.active = 0, "deactivating"
        self.changed(unit)

    def end_main(self, name):
        """The main process ends, without a signal of systemd."""
        unit = self.units[name]
        with self._lock:
            main = unit.processes.pop(0)
            self.list_processes(unit)
        main.kill()
        main.wait()

    def replace_main(self, name):
        """The service starts another main process, and the former one ends."""
        unit = self.units[name]
        with self._lock:
            unit.processes.insert(1, subprocess.Popen(["sleep", "600"]))
        self.end_main(name)
        self.changed(unit)

    def restart(self, name):
        self.stop(name)
        self.start(name)

    def reload(self):
        self._emit(MANAGER_PATH, MANAGER, "Reloading", "b", (True,))
        self._emit(MANAGER_PATH, MANAGER, "Reloading", "b", (False,))

    def execute_again(self):
        """systemctl daemon-reexec: systemd has another name on the bus, and no subscriptions."""
        before, self.owner = self.owner, f":1.{int(self.owner[3:]) + 1}"
        for old, new in ((before, ""), ("", self.owner)):
            self._emit("/org/freedesktop/DBus", BUS, "NameOwnerChanged", "sss", (SYSTEMD, old, new), BUS)

    def changed(self, unit):
        body = (UNIT, {"ActiveState": ("s", unit.active)}, [])
        self._emit(unit_path(unit.name), PROPERTIES, "PropertiesChanged", "sa{sv}as", body)

    def forge_signal(self, member, body, sender):
        """Another program sends a signal of systemd to all clients."""
        self._emit(MANAGER_PATH, MANAGER, member, "so", body, sender)

    def send_bytes(self, data):
        """Another program sends bytes to all clients."""
        with self._lock:
            for client in list(self._clients):
                client.sendall(data)

    def folder_of(self, unit):
        return self.folders.groups / unit.group.strip("/")

    def group_file(self, name, file):
        return (self.folder_of(self.units[name]) / file).read_text().strip()

    def drop_ins(self, name):
        """The files that systemd has written for properties of a service."""
        return sorted(path.name for path in self.control_of(name).glob("*"))

    def control_of(self, name):
        """The folder of systemd's files for properties that are set at run time."""
        # A scope has no unit file, and so has its properties in another folder.
        folder = "transient" if unit_kind(name) == "scope" else "system.control"
        return self.folders.runtime / folder / f"{name}.d"

    def realize(self, unit, values):
        """Write properties to the group, as systemd does some time after its answer."""
        folder = self.folder_of(unit)
        if not folder.is_dir():
            return
        processes = [process for one in (unit, *self.units_below(unit.name)) for process in one.processes]
        for name, value in values.items():
            if name in self.ignores:
                continue
            if name in DEVICE_PROPERTIES:
                self._write_limits(folder, unit, name)
            else:
                _write_group(folder, name, value, processes)

    def _write_limits(self, folder, unit, name):
        """Write the limits of all paths in their order, each with its missing limits."""
        if name == LATENCY and not (folder / VALUE_FILES[name]).exists():
            return  # The kernel lacks it.
        lines, names = {}, (LATENCY,) if name == LATENCY else RATES
        paths = {**unit.paths, **dict.fromkeys(path for each in names for path, _ in unit.values[each].pairs)}
        for path in paths:
            limits = [unit.values[each].by_device.get(path, INFINITY) for each in names]
            lines[self.folders.limited_device(path)] = limits
        keys = ("target",) if name == LATENCY else ("rbps", "wbps", "riops", "wiops")
        text = "".join(
            f"{device} {' '.join(f'{key}={max_text(one)}' for key, one in zip(keys, limits, strict=True))}\n"
            for device, limits in lines.items()
            if device and set(limits) != {INFINITY}
        )
        (folder / VALUE_FILES[name]).write_text(text)

    # The protocol

    def _accept(self, server):
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError), client:
            buffer = b""
            while b"\r\n" not in buffer:
                buffer += client.recv(1024)
            client.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
            buffer = buffer.split(b"\r\n", 1)[1]
            while b"BEGIN\r\n" not in buffer:
                buffer += client.recv(1024)
            parser = Parser()
            parser.add_data(buffer.split(b"BEGIN\r\n", 1)[1])
            with self._lock:
                self._clients.append(client)
            while True:
                while (message := parser.get_next_message()) is not None:
                    self._answer(client, message)
                data = client.recv(65536)
                if not data:
                    return
                parser.add_data(data)

    def _answer(self, client, message):
        fields = message.header.fields
        member, destination = fields[HeaderFields.member], fields[HeaderFields.destination]
        if destination == BUS:
            sender = BUS
            match member:
                case "Hello":
                    reply = jeepney.new_method_return(message, "s", (":1.99",))
                case "GetNameOwner":
                    reply = jeepney.new_method_return(message, "s", (self.owner,))
                case _:
                    reply = jeepney.new_method_return(message)
            self._send(client, reply, sender)
            return
        if destination != self.owner:
            error = jeepney.new_error(message, f"{BUS}.Error.ServiceUnknown", "s", ("no such name",))
            self._send(client, error, BUS)
            return
        if self.hangs.is_set():
            return
        with self._lock:
            self.calls.append(member)
            try:
                signature, body, after = self._call(fields[HeaderFields.path], member, message.body)
                reply = jeepney.new_method_return(message, signature, body)
            except KeyError as error:
                name, after = f"{SYSTEMD}.NoSuchUnit", None
                reply = jeepney.new_error(message, name, "s", (f"Unit {error} not found.",))
            except RefusedError as error:
                name, after = error.args[0], None
                reply = jeepney.new_error(message, name, "s", (error.args[1],))
            self._send(client, reply, self.owner)
        if after is not None:
            after()

    def _call(self, path, member, body):
        match member:
            case "Subscribe":
                return None, (), None
            case "Get":
                return "v", (("s", self.version),), None
            case "ListUnitsByPatterns":
                rows = [
                    (it.name, "", it.load, it.active, "", "", unit_path(it.name), 0, "", "/")
                    for it in self.units.values()
                ]
                return "a(ssssssouso)", (rows,), None
            case "GetAll":
                return "a{sv}", (self.units[unit_of_path(path)].properties(body[0]),), None
            case "SetUnitProperties":
                return None, (), self._set(*body)
            case "StopUnit":
                if unit_kind(body[0]) == SLICE:
                    return "o", ("/org/freedesktop/systemd1/job/1",), lambda: self.stop_slice(body[0])
                stop = self.begin_stop if self.units[body[0]].slow_stop else self.stop
                return "o", ("/org/freedesktop/systemd1/job/1",), lambda: stop(body[0])
            case "KillUnit":
                units = (*self.units_below(body[0]), self.units[body[0]])
                return None, (), lambda: [self.stop(unit.name, "failed") for unit in units]
        raise AssertionError(member)

    def _set(self, name, runtime, pairs):
        assert runtime is True
        unit = self.units[name]
        values = {}
        for key, variant in pairs:
            if key in DEVICE_PROPERTIES:
                assert variant[0] == "a(st)", variant
                # The limits of paths that are not named stay, and an empty list removes all of them.
                limits = {**unit.values[key].by_device, **dict(variant[1])} if variant[1] else {}
                values[key] = DeviceLimits.from_limits(limits)
                # systemd remembers a path without a limit, and writes "max" for it.
                unit.paths.update(dict.fromkeys(path for path, _ in variant[1]))
            else:
                values[key] = decode_value(key, variant)
        for key in values:
            if key in self.refusals:
                raise RefusedError(*self.refusals[key])
        unit.values.update(values)
        folder = self.control_of(name)
        folder.mkdir(exist_ok=True)
        for key in values:
            (folder / drop_in_name(key)).write_text("# written by systemd\n")

        def realize():
            self.realize(unit, values)
            self.changed(unit)

        return realize

    def _emit(self, path, interface, member, signature, body, sender=None):
        address = jeepney.DBusAddress(path, bus_name="x.y", interface=interface)
        signal = jeepney.new_signal(address, member, signature, body)
        with self._lock:
            for client in list(self._clients):
                with contextlib.suppress(OSError):
                    self._send(client, signal, sender or self.owner)

    def _send(self, client, message, sender):
        with self._lock:
            self._serial += 1
            message.header.fields[HeaderFields.sender] = sender
            assert message.header.message_type is not MessageType.method_call
            client.sendall(message.serialise(self._serial))


def max_text(limit):
    return "max" if limit == INFINITY else str(limit)


def slice_parts(name):
    """The slices from the outermost one to this one: a-b.slice is in a.slice."""
    words = name.removesuffix(".slice").split("-")
    return [f"{'-'.join(words[:end])}.slice" for end in range(1, len(words) + 1)]


class RefusedError(Exception):
    """systemd refuses a call: the name of the error, and its text."""


def _write_group(folder, name, value, processes):
    def write(file, text):
        (folder / file).write_text(f"{text}\n")

    match name:
        case "AllowedCPUs":
            has = cpuset.parse((folder / "cpuset.cpus").read_text())
            # The kernel refuses an empty set for a group with processes that had CPUs.
            if not value and has and processes:
                return
            if value and max(value) > max(os.sched_getaffinity(0)) + 1000:
                return
            write("cpuset.cpus", cpuset.format(value))
            for process in processes:
                if value:
                    os.sched_setaffinity(process.pid, value)
        case "AllowedMemoryNodes":
            if value or not (folder / "cpuset.mems").read_text().strip():
                write("cpuset.mems", cpuset.format(value))
        case "CPUWeight":
            write("cpu.idle", int(value == IDLE))
            write("cpu.weight", 100 if value == INFINITY else value)
        case "CPUQuotaPerSecUSec":
            write("cpu.max", "max 100000" if value == INFINITY else f"{value // 10} 100000")
        case "IOWeight":
            write("io.weight", f"default {100 if value == INFINITY else value}")
        case _:
            file = {"MemoryMax": "max", "MemoryHigh": "high", "MemoryLow": "low", "MemoryMin": "min"}[name]
            write(f"memory.{file}", "max" if value == INFINITY else value)
