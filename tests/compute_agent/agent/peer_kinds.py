"""Programs that run guests, for tests of whole agents: fake engines and a fake systemd, by one interface."""

from compute_agent.drivers.foreign.declared import made_uuid
from tests.compute_agent.drivers.containers.fake_engine import GUEST, FakeEngine
from tests.compute_agent.drivers.systemd.fake_systemd import FakeSystemd


class Containers:
    """Containers of a fake engine, by the names of settings."""

    name = "db"
    option = "podman"

    def __init__(self, folder, monkeypatch):
        self.peer = fake = FakeEngine(folder, monkeypatch)
        self.uuid = made_uuid("testhost", self.option, self.name)
        self.section = {self.option: f"socket = {fake.path}"}
        fake.serve_drivers(monkeypatch)

    def start(self, name=name, **settings):
        self.peer.start(name, {**GUEST, **{f"compute-agent.{key}": text for key, text in settings.items()}})

    def end(self, name=name):
        """End a guest for good."""
        self.peer.stop(name)
        self.peer.remove(name)

    def is_running(self, name=name):
        return self.peer.is_running(name)

    def pids(self, name=name):
        return self.peer.pids(name)

    def group_file(self, file, name=name):
        return self.peer.group_file(name, file)


class DockerContainers(Containers):
    """Containers of a fake engine that the driver of Docker uses."""

    option = "docker"


class Pods(Containers):
    """Pods with an infra container and one more."""

    def __init__(self, folder, monkeypatch):
        super().__init__(folder, monkeypatch)
        self.section["podman"] += "\npods = pod"

    def start(self, name="db", **settings):
        self.peer.start_pod(
            name, {**GUEST, **{f"compute-agent.{key}": text for key, text in settings.items()}}
        )

    def end(self, name="db"):
        self.peer.stop_pod(name)
        key = self.peer.pod_key(name)
        for container in [one.name for one in self.peer.containers.values() if one.pod == key]:
            self.peer.remove(container)

    def is_running(self, name="db"):
        return self.peer.is_running(f"{name}-1")

    def pids(self, name="db"):
        return self.peer.pids(f"{name}-1")

    def group_file(self, file, name="db"):
        return self.peer.pod_file(name, file)


class Services:
    """Services of a fake systemd, by the names of settings."""

    name = "db.service"
    option = "systemd"

    def __init__(self, folder, monkeypatch):
        self.peer = FakeSystemd(folder)
        self.uuid = made_uuid("testhost", self.name)
        self.section = {"systemd": f"bus_socket = {self.peer.path}"}

    def start(self, name=name, **settings):
        section = self.section_of(settings)
        if name in self.peer.units:
            self.peer.define(name, section)
            self.peer.reload()
        self.start_unit(name, section)

    def start_unit(self, name, section):
        self.peer.start(name, section)

    def section_of(self, settings):
        keys = {key: "".join(word.capitalize() for word in key.split("-")) for key in settings}
        return "[X-ComputeAgent]\n" + "".join(f"{keys[key]}={text}\n" for key, text in settings.items())

    def end(self, name=name):
        """End a guest for good."""
        self.peer.stop(name)

    def is_running(self, name=name):
        return bool(self.peer.units[name].processes)

    def pids(self, name=name):
        return [process.pid for process in self.peer.units[name].processes]

    def group_file(self, file, name=name):
        return self.peer.group_file(name, file)


class Scopes(Services):
    """Scopes of a fake systemd, which have their settings in a drop-in."""

    name = "job.scope"

    def start(self, name=name, **settings):
        super().start(name, **settings)

    def start_unit(self, name, section):
        self.peer.start(name, None, [section])

    def end(self, name=name):
        self.peer.stop(name)
        self.peer.changed(self.peer.units.pop(name))

    def is_running(self, name=name):
        return name in self.peer.units and super().is_running(name)

    def pids(self, name=name):
        return super().pids(name)

    def group_file(self, file, name=name):
        return super().group_file(file, name)


class Slices(Services):
    """Slices of a fake systemd with one service, which is no guest by itself."""

    name = "app.slice"

    def start(self, name=name, **settings):
        super().start(name, **settings)

    def start_unit(self, name, section):
        self.peer.start(name, section, processes=0)
        self.peer.start(f"in-{name}.service", None, slice=name)

    def end(self, name=name):
        self.peer.stop_slice(name)

    def is_running(self, name=name):
        return super().is_running(f"in-{name}.service")

    def pids(self, name=name):
        return super().pids(f"in-{name}.service")

    def group_file(self, file, name=name):
        return super().group_file(file, name)
