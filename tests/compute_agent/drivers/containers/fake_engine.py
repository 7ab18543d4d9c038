"""An engine of containers: the Docker Engine API over a UNIX socket, real processes, and fake groups.

It answers as Podman 4.3 does, as far as the agent asks.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from compute_agent.drivers import factory, procfs
from compute_agent.drivers.foreign.editor import HostFolders
from compute_agent.model import cpuset
from tests.compute_agent.cgroups import FakeCgroups

GUEST = {"compute-agent.guest": "true"}
IMAGE = "sha256:" + "1" * 64


@dataclass
class FakeContainer:
    """A container with its processes; the first one is the main process."""

    name: str
    labels: dict
    key: str
    image: str = IMAGE
    group: str = ""
    processes: list = field(default_factory=list)
    pod: str = ""
    is_infra: bool = False
    status: str = "running"
    slow_stop: bool = False
    """Whether a stop takes as long as it may."""

    @property
    def state(self):
        """The state of the container as Podman names it."""
        return self.status if self.processes else "exited"


class ContainerGroups(FakeCgroups):
    """Groups that move their processes to their CPUs, as the kernel does."""

    def _write_file(self, group, name, value):
        super()._write_file(group, name, value)
        if name == "cpuset.cpus":
            for pid in self._process_ids(group):
                os.sched_setaffinity(pid, cpuset.parse(value))


class FakeEngine:
    """The engine, in threads of this process."""

    def __init__(self, folder, monkeypatch, group_format="/machine.slice/libpod-{}.scope"):
        self.folder = folder
        self.path = folder / "engine.sock"
        self.folders = HostFolders(Path("/"), folder / "cgroup")
        self.group_format = group_format
        self.containers = {}
        self.images = {IMAGE: {}}
        """Labels by the id of the image."""
        self.calls = []
        """The methods and paths of requests, without versions and queries."""
        self.version = {
            "ApiVersion": "1.41",
            "MinAPIVersion": "1.24",
            "Components": [{"Name": "Podman Engine"}],
        }
        self.pods = {}
        """Names and labels by the id of the pod."""
        self.holds_streams = threading.Event()
        self.hangs = threading.Event()
        """While it is set, the engine answers no request."""
        self.stuck = set()
        """Paths without an answer, as if the engine waited for the lock of a container."""
        self.answers = {}
        """Status and content of the answers to paths, in place of the usual ones."""
        self.stops = True
        self.removed = 0
        """The number of containers that were removed."""
        self._streams = []
        self._lock = threading.RLock()
        self.groups = ContainerGroups(folder / "cgroup", monkeypatch)
        self._real_path = procfs.cgroup_path
        monkeypatch.setattr(procfs, "cgroup_path", self._group_path)
        self._server = None
        self.listen()

    # For tests

    def listen(self):
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self):
                return "unix"

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                engine.answer(self)

            do_POST = do_GET  # noqa: N815 - the name that the base class calls

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(str(self.path), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def go_away(self):
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink()
        self.drop_streams()

    def drop_streams(self):
        with self._lock:
            streams, self._streams = self._streams, []
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        for container in self.containers.values():
            self._kill(container)
        with contextlib.suppress(OSError):
            self.go_away()

    def start(self, name, labels=GUEST, processes=1, **changes):
        """Start a container; with an event, if it is meant to be a guest."""
        key = next((key for key, it in self.containers.items() if it.name == name), "")
        key = key or hashlib.sha256(f"{name} {self.removed}".encode()).hexdigest()
        with self._lock:
            container = self.containers.setdefault(key, FakeContainer(name, dict(labels), key))
            container.group = changes.pop("group", "") or container.group or self.group_format.format(key)
            for field_name, value in changes.items():
                setattr(container, field_name, value)
            container.processes = [subprocess.Popen(["sleep", "600"]) for _ in range(processes)]
            container.status = "running"
            folder = self.folder_of(container)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.min").write_text("0\n")
            self.groups.make_files(folder)
            self.groups.members |= {process.pid: folder for process in container.processes}
            upper = folder.parent / "cpuset.cpus"
            if container.pod and (cpus := cpuset.parse(upper.read_text() if upper.exists() else "")):
                for process in container.processes:
                    os.sched_setaffinity(process.pid, cpus)
        self.emit(container, "start")
        return container

    def start_pod(self, name, labels=GUEST, group_format="/machine.slice/machine-libpod_pod_{}.slice"):
        """Start a pod with its infra container, which has the labels of the pod, and a container."""
        key = hashlib.sha256(f"pod {name} {self.removed}".encode()).hexdigest()
        if key not in self.pods:
            self.pods[key] = (name, dict(labels), group_format.format(key))
            folder = self.folders.groups / group_format.format(key).strip("/")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.min").write_text("0\n")
            self.groups.make_files(folder)
        self.join_pod(name, f"{key[:12]}-infra", labels, is_infra=True)
        self.join_pod(name, f"{name}-1", {})
        return key

    def join_pod(self, pod, name, labels=GUEST, is_infra=False):
        """Start a container in a pod."""
        key, group = next((key, group) for key, (one, _, group) in self.pods.items() if one == pod)
        path = hashlib.sha256(f"{name} {self.removed}".encode()).hexdigest()
        return self.start(name, labels, group=f"{group}/libpod-{path}.scope", pod=key, is_infra=is_infra)

    def stop_pod(self, name):
        """Stop a pod. Its control group stays."""
        key = self.pod_key(name)
        members = [one for one in self.containers.values() if one.pod == key and one.processes]
        for one in sorted(members, key=lambda one: one.is_infra):
            self.stop(one.name)

    def pod_key(self, name):
        return next(key for key, (one, *_) in self.pods.items() if one == name)

    def pod_file(self, name, file):
        return (self.folders.groups / self.pods[self.pod_key(name)][2].strip("/") / file).read_text().strip()

    def stop(self, name, event="die"):
        container = self.named(name)
        self._kill(container)
        shutil.rmtree(self.folder_of(container), ignore_errors=True)
        if event:
            self.emit(container, event)

    def pause(self, name):
        self.named(name).status = "paused"

    def begin_stop(self, name):
        """Begin to stop a container that does not end by itself."""
        assert self.named(name).slow_stop
        self.named(name).status = "stopping"

    def remove(self, name):
        """Remove a container that does not run; the next one of this name has another id."""
        container = self.named(name)
        del self.containers[container.key]
        self.removed += 1
        self.emit(container, "remove")

    def restart(self, name):
        self.stop(name)
        self.start(name)

    def named(self, name):
        return next(one for one in self.containers.values() if one.name == name)

    def pids(self, name):
        return [process.pid for process in self.named(name).processes]

    def is_running(self, name):
        return bool(self.named(name).processes)

    def serve_drivers(self, monkeypatch):
        """Let the drivers of agents find the groups of this engine."""
        monkeypatch.setattr(factory, "HostFolders", lambda *folders: self.folders)

    def folder_of(self, container):
        return self.folders.groups / container.group.strip("/")

    def _group_path(self, pid):
        """The path of the group of a process, as /proc/PID/cgroup has it; empty if the process has ended."""
        running = ((one, it) for one in self.containers.values() for it in one.processes if it.poll() is None)
        found = next((one.group for one, it in running if it.pid == pid), None)
        return self._real_path(pid) if found is None else found

    def group_file(self, name, file):
        return (self.folder_of(self.named(name)) / file).read_text().strip()

    def emit(self, container, action):
        event = {
            "Type": "container",
            "Action": action,
            "Actor": {"ID": container.key, "Attributes": {"name": container.name, **container.labels}},
        }
        self.send_event(json.dumps(event).encode() + b"\n", container.labels.get("compute-agent.guest"))

    def send_event(self, line, label="true"):
        with self._lock:
            streams = [one for one in self._streams if label == "true" or "label" not in one.path]
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def stream_count(self):
        return len(self._streams)

    def _kill(self, container):
        for process in container.processes:
            process.kill()
            process.wait()
        with self._lock:
            container.processes = []

    # The protocol

    def answer(self, request):
        parts = urlsplit(request.path)
        path = parts.path.removeprefix("/v1.41")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with self._lock:
            self.calls.append(f"{request.command} {path}")
        if self.hangs.is_set() or path in self.stuck:
            while self.hangs.is_set() or path in self.stuck:
                time.sleep(0.02)
            request.close_connection = True
            return
        if path == "/events" and path not in self.answers:
            self._stream(request)
            return
        status, document = self.answers.get(path) or self._answer(path, query)
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(0 if status == 204 else len(content)))
        request.send_header("Connection", "close")
        request.end_headers()
        if status != 204:
            request.wfile.write(content)
        request.close_connection = True

    def _stream(self, request):
        while self.holds_streams.is_set():
            time.sleep(0.02)
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        with self._lock:
            request.end_headers()
            self._streams.append(request)
        # The client sends nothing more, so this waits for its end.
        with contextlib.suppress(OSError):
            request.connection.recv(1)
        with self._lock, contextlib.suppress(ValueError):
            self._streams.remove(request)
        request.close_connection = True

    def _answer(self, path, query):
        missing = 404, {"message": f"no such object: {path}"}
        if path == "/version":
            return 200, self.version
        if path == "/containers/json":
            filters = json.loads(query["filters"])
            labels, states = filters.get("label", []), filters.get("status", ["running"])
            if "stopping" in states:
                return 500, {"message": "unknown container state: stopping: invalid argument"}
            return 200, [
                {"Id": it.key, "Names": [f"/{it.name}"], "ImageID": it.image, "Labels": it.labels}
                for it in self.containers.values()
                if it.state in states and it.labels.keys() >= set(labels)
            ]
        is_own, path = path.startswith("/libpod/"), path.removeprefix("/libpod")
        _, kind, key, *rest = path.split("/")
        if kind == "pods":
            return self._answer_pod(key, rest, missing) if is_own and key in self.pods else missing
        if kind == "images":
            found = self.images.get(key)
            return missing if found is None else (200, {"Config": {"Labels": found}})
        container = self.containers.get(key)
        if container is None:
            return missing
        match rest:
            case ["json"]:
                document = self.document(container)
                if is_own:
                    document |= {"Name": container.name, "Pod": container.pod, "IsInfra": container.is_infra}
                return 200, document
            case ["stop"]:
                if not container.processes:
                    return 304, b""
                if container.status == "paused":
                    return 500, {"message": "can only stop created or running containers"}
                if self.stops:
                    self.stop(container.name)
                return 204, b""
            case ["unpause"]:
                if container.state != "paused":
                    return 500, {"message": "is not paused, can't unpause"}
                container.status = "running"
                return 204, b""
            case ["kill"]:
                self.stop(container.name)
                return 204, b""
        raise AssertionError(path)

    def _answer_pod(self, key, rest, missing):
        name, labels, _ = self.pods[key]
        members = [one for one in self.containers.values() if one.pod == key]
        match rest:
            case ["json"]:
                rows = [{"Id": it.key, "State": it.state} for it in members]
                return 200, {"Id": key, "Name": name, "Labels": labels, "Containers": rows}
            case ["stop"]:
                # A pod of which a container has ended or is paused is not stopped.
                if not all(one.state == "running" for one in members):
                    return 304, b""
                if self.stops:
                    self.stop_pod(name)
                return 200, {"Id": key}
            case ["kill"]:
                self.stop_pod(name)
                return 200, {"Id": key}
        return missing

    def document(self, container):
        """The answer to an inspection of a container."""
        return {
            "Id": container.key,
            "Name": f"/{container.name}",
            "Image": container.image,
            "State": {
                "Status": container.state,
                "Running": container.state == "running",
                "Pid": container.processes[0].pid if container.processes else 0,
            },
            "Config": {"Labels": container.labels},
        }
