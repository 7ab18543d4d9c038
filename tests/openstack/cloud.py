"""Nova with a Placement of one kind."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.servers import MeasuredService
from tests.keystone import Keystone
from tests.openstack import config, placement
from tests.openstack.client import CloudClient
from tests.openstack.config import CloudHost
from tests.openstack.ground import Ground, folder_of
from tests.openstack.process import Program, run
from tests.openstack.rabbitmq import RabbitMQ
from tests.openstack.web import serving
from tests.ports import free_port
from tests.waits import wait_for

REAL: Final = "real"
"""Name of the host with QEMU guests."""
FAKE: Final = ("fake-1", "fake-2")
"""Names of the hosts with fake guests."""

_SECONDS: Final = 300.0
_PROVIDED: Final = """\
meta: {schema_version: '1.0'}
providers:
- identification: {uuid: $COMPUTE_NODE}
  inventories:
    additional:
    - CUSTOM_LLC: {total: 16, reserved: 2, min_unit: 1, max_unit: 16, step_size: 1, allocation_ratio: 1.0}
  traits:
    additional: [CUSTOM_FAST]
"""


@dataclass
class Cloud:
    """A running cloud with its administrator's clients."""

    kind: str
    placement: CloudClient
    log: Path
    """Client of Placement."""
    compute: CloudClient
    image: CloudClient
    keystone: Keystone
    folder: Path
    hosts: dict[str, Program]
    """The `nova-compute` of each host."""
    services: Sequence[Program]
    """The other services of Nova."""
    _manage: Callable[[Sequence[str], Sequence[int]], str] = field(repr=False)

    def manage(self, *arguments: str, good: Sequence[int] = (0,)) -> str:
        """Run `nova-manage` and return its output.

        :param good: permitted exit statuses
        """
        return self._manage(arguments, good)

    def check(self) -> None:
        """Check that all programs run that were not stopped.

        :raises CloudFailed: one has ended.
        """
        for program in [*self.services, *self.hosts.values()]:
            program.check()

    def heard(self, host: str) -> str | None:
        """Return the time of the last report of the host's `nova-compute` to Nova, None without one."""
        services = self.compute.get(f"/os-services?binary=nova-compute&host={host}")["services"]
        return services[0]["updated_at"] if services else None

    def start(self, host: str) -> None:
        """Start a `nova-compute` that was stopped, and wait until it has reported."""
        before = self.heard(host)
        self.hosts[host].start()

        def has_reported() -> bool:
            self.hosts[host].check()
            return self.heard(host) != before

        wait_for_cloud(has_reported, f"nova-compute of {host} has reported")


@contextmanager
def cloud(
    ground: Ground,
    kind: str,
    real: CloudHost | None = None,
    *,
    hosts: Sequence[CloudHost] = (),
    options: str = "",
) -> Iterator[Cloud]:
    """A cloud with :data:`REAL` and :data:`FAKE` hosts, from nothing.

    :param kind: of its Placement, one of :data:`tests.openstack.placement.KINDS`.
    :param real: instead of :func:`real_host`.
    :param hosts: instead of all these.
    :param options: more lines of the configuration of all services of Nova.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(folder_of(ground, kind))
        stack.callback(ground.libvirtd.end_guests)
        service = stack.enter_context(_placement(ground, kind, folder))
        (folder / "rabbitmq").mkdir()
        bus = stack.enter_context(RabbitMQ(folder / "rabbitmq")).url
        nova = _Nova(ground, folder, bus, hosts or [real or real_host(), *map(CloudHost, FAKE)], options)
        stack.callback(nova.stop)
        nova.start()
        keystone = ground.keystone
        made = Cloud(
            kind,
            CloudClient(keystone, f"http://127.0.0.1:{service.port}", "placement 1.39"),
            service.log_path,
            CloudClient(keystone, f"{nova.url}/v2.1", "compute 2.96"),
            CloudClient(keystone, ground.images),
            keystone,
            folder,
            nova.hosts,
            nova.services,
            nova.manage,
        )
        wait_for_cloud(lambda: all(map(made.heard, nova.hosts)), "every nova-compute has started")
        made.manage("cell_v2", "discover_hosts")
        yield made


def wait_for_cloud(
    happens: Callable[[], bool],
    what: str,
    seconds: float = _SECONDS,
    evidence: Callable[[], object] | None = None,
) -> None:
    """Wait for the condition, longer than for other programs."""
    wait_for(happens, what, evidence=evidence, seconds=seconds, pause=0.3)


@contextmanager
def _placement(ground: Ground, kind: str, folder: Path) -> Iterator[MeasuredService]:
    service = placement.service(kind, ground.databases.fresh_database(), folder, ground.keystone)
    with service:
        ground.keystone.identity.service("placement", "placement", f"http://127.0.0.1:{service.port}")
        yield service


class _Nova:
    """Run the services of the cloud."""

    def __init__(
        self, ground: Ground, folder: Path, bus: str, hosts: Sequence[CloudHost], options: str
    ) -> None:
        self._ground = ground
        self._folder = folder
        self._bus = bus
        self._options = options
        self._programs = ground.programs
        # nova-compute must not have database options
        self._shared = folder / "nova.conf"
        self._databases = folder / "nova-databases.conf"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.services = [self._api(port), self._service("conductor"), self._service("scheduler")]
        self.hosts = {host.name: self._host(host) for host in hosts}

    def start(self) -> None:
        """Start all of them without waiting."""
        self._configure()
        programs = [*self.services, *self.hosts.values()]
        for program in programs:
            program.launch()
        for program in programs:
            program.wait()

    def stop(self) -> None:
        programs = [*self.hosts.values(), *self.services]
        for program in programs:
            program.terminate()
        for program in programs:
            program.stop()

    def manage(self, arguments: Sequence[str], good: Sequence[int]) -> str:
        """Run `nova-manage` on this cloud."""
        return run([*self._command("nova-manage"), *arguments], self._folder, good=good)

    def _configure(self) -> None:
        """Create databases with all tables and two cells: one for guests without a host, and another one."""
        ground = self._ground
        urls = {}
        for name, kind in (("api", "api"), ("cell0", "main"), ("cell1", "main")):
            urls[name] = ground.databases.fresh_database()
            ground.databases.restore(urls[name], ground.schemas[kind])
        text = config.services(self._folder, ground.keystone, self._bus)
        self._shared.write_text(text + self._options)
        self._databases.write_text(config.databases(urls["api"], urls["cell1"]))
        self.manage(["cell_v2", "map_cell0", "--database_connection", urls["cell0"]], (0,))
        self.manage(["cell_v2", "create_cell", "--name", "cell1"], (0,))

    def _command(self, name: str) -> list[str | Path]:
        files = (self._shared, self._databases)
        return [self._programs / name, *(word for path in files for word in ("--config-file", path))]

    def _service(self, name: str) -> Program:
        return Program(f"nova-{name}", self._command(f"nova-{name}"), self._folder, lambda: True)

    def _api(self, port: int) -> Program:
        paste = self._programs.parent / "etc" / "nova" / "api-paste.ini"
        files = {
            "OS_NOVA_CONFIG_DIR": str(self._folder),
            "OS_NOVA_CONFIG_FILES": ";".join(map(str, (paste, self._shared, self._databases))),
        }
        folder = self._folder / "nova-api"
        return serving("nova-api", "nova.wsgi.osapi_compute:application", port, folder, self._programs, files)

    def _host(self, host: CloudHost) -> Program:
        folder = self._folder / host.name
        for path in (folder / "provided", folder / "instances", self._folder / "instances"):
            path.mkdir(parents=True, exist_ok=True)
        if host.address:
            sockets = self._folder / config.SOCKETS
            sockets.mkdir(exist_ok=True)
            (sockets / host.address).symlink_to(host.uri.partition("socket=")[2])
        (folder / "provided" / "provider.yaml").write_text(_PROVIDED)
        own = folder / "nova-compute.conf"
        uri = self._ground.libvirtd.uri
        own.write_text(config.compute(host, folder, self._programs, self._shared, uri))
        command = host.command("nova-compute", self._programs)
        files = ("--config-file", self._shared, "--config-file", own)
        return Program(f"nova-compute-{host.name}", [*command, *files], self._folder, lambda: True)


def real_host(interval: int = 60) -> CloudHost:
    """Configuration of the host with guests: one dedicated and one shared CPU of this machine."""
    shared, dedicated, *_ = sorted(os.sched_getaffinity(0))
    return CloudHost(REAL, str(shared), str(dedicated), interval)
