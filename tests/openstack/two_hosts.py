"""Two hosts of a cloud with real guests, which migrate between them: a libvirtd and an agent on each."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from compute_agent.agent.protocol import DaemonUnreachableError, RequestError, call_agent
from tests.compute_agent.libvirtd import Libvirtd
from tests.compute_agent.power_trees import xeon
from tests.openstack.agent import CHECKOUT
from tests.openstack.cloud import Cloud, cloud, real_host
from tests.openstack.config import CloudHost
from tests.openstack.ground import Ground, folder_of
from tests.openstack.identity import AGENT, credentials
from tests.openstack.process import Program
from tests.openstack.servers import Servers

HOSTS: Final = ("host-a", "host-b")
_ADDRESSES: Final = ("127.0.0.1", "127.0.0.2")
# Where use_cow_images is true, Nova makes a raw disk that migrates qcow2, and then uses it as a raw one.
_NOVA: Final = (
    "[DEFAULT]\nallow_resize_to_same_host = true\ncpu_allocation_ratio = 16\nuse_cow_images = false\n"
)
_MORE: Final = "# more of this test\n"
_CONFIG: Final = """\
[DEFAULT]
state_path = {folder}/state
lock_path = {folder}/locks
[daemon]
http_port = 0
[placement]
{credentials}
[guests]
drivers = libvirt
reconcile_interval = 0.5
[libvirt]
uri = {host.uri}
[compute]
cpu_shared_set = {host.shared}
cpu_dedicated_set = {host.dedicated}
update_resources_interval = 5
"""


@contextmanager
def two_libvirtd() -> Iterator[list[Libvirtd]]:
    """A libvirtd of each host. They share a network of loopback alone.

    libvirt numbers domains in the order of their starts, and names their cgroups so. A guest that migrates
    live must not have the same number on both hosts.
    """
    with ExitStack() as stack:
        made: list[Any] = []
        for name in HOSTS:
            server = Libvirtd(hostname=name, network=made[0] if made else None)
            stack.callback(server.stop)
            server.start()
            made.append(server)
        yield made


@dataclass
class TwoHosts:
    """A cloud of two hosts with real guests."""

    ground: Ground
    cloud: Cloud
    servers: Servers
    libvirtd: Mapping[str, Any]
    hosts: Mapping[str, CloudHost]
    power: Path
    """Root of the played ``/sys`` in which the first nova-compute manages the power of CPUs."""

    def end_guests(self, host: str) -> None:
        """End all guests of a host, as its death does."""
        self.libvirtd[host].end_guests()

    def quota(self, host: str, uuid: str) -> float | None:
        """The cores that libvirt lets a guest have, None for all."""
        domain = self.libvirtd[host].connection.lookupByUUIDString(uuid)
        found = domain.schedulerParameters()
        quota, period = found["global_quota"], found["global_period"]
        return quota / period if 0 < quota < period else None  # 17592186044415 or negative: none

    def process(self, host: str, uuid: str) -> int:
        """The id of the process of a guest; 0 if it does not run."""
        server = self.libvirtd[host]
        try:
            return int(server.process(server.connection.lookupByUUIDString(uuid)))
        except (OSError, server.libvirt.libvirtError):
            return 0

    def configure_nova(self, host: str, text: str) -> None:
        """Start the nova-compute of a host with these lines after its own."""
        path = self.cloud.folder / host / "nova-compute.conf"
        own = path.read_text().partition(_MORE)[0]
        self.cloud.hosts[host].stop()
        path.write_text(f"{own}{_MORE}{text}")
        self.cloud.start(host)


@contextmanager
def two_hosts(ground: Ground) -> Iterator[TwoHosts]:
    """The cloud. Guests may be resized on their host."""
    with two_libvirtd() as servers, folder_of(ground, "power") as power:
        base, python = real_host(), str(ground.programs / "python")
        runner = ("env", f"PYTHONPATH={CHECKOUT}", python, "-m", "tests.openstack.nova_on_one_machine")
        hosts = []
        for name, server, address in zip(HOSTS, servers, _ADDRESSES, strict=True):
            play_power(power / name, 2)
            own = (*runner, str(power / name))
            hosts.append(replace(base, name=name, uri=server.uri, address=address, runner=own))
        with cloud(ground, "ours", hosts=hosts, options=_NOVA) as running, ExitStack() as stack:
            for server in servers:
                stack.callback(server.end_guests)
            yield TwoHosts(
                ground,
                running,
                Servers(running),
                dict(zip(HOSTS, servers, strict=True)),
                {host.name: host for host in hosts},
                power / HOSTS[0],
            )


def play_power(root: Path, cpus: int) -> None:
    """Files of a machine with CPUs that can go offline."""
    xeon(root, cpus)
    node = root / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text(f"0-{cpus - 1}\n")
    (node / "meminfo").write_text("Node 0 MemTotal: 16777216 kB\n")
    (root / "proc/meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")


STANDING: Final = pytest.StashKey[TwoHosts]()
"""The cloud of :mod:`tests.openstack.standing`, in the stash of pytest's configuration."""


@dataclass
class HostAgent:
    """The agent of a host, which may be ended and started again."""

    folder: Path
    program: Program = field(init=False)

    def ask(self, method: str, **params: Any) -> Any:
        """The answer of the running agent, None as long as it does not listen."""
        try:
            return call_agent(self.folder / "state/agent.sock", method, params)
        except DaemonUnreachableError:
            return None

    def guest(self, uuid: str) -> dict[str, Any] | None:
        """Return the answer of `guest show`; None if there is no such guest."""
        try:
            found: dict[str, Any] | None = self.ask("guest.show", guest=uuid)
        except RequestError:
            return None
        return found

    def configure(self, text: str) -> None:
        """Replace its configuration; an agent that runs takes it up by itself."""
        (self.folder / "compute-agent.conf").write_text(text)

    def is_up(self) -> bool:
        """Whether it follows nova-compute and has reported."""
        status = self.ask("status")
        return bool(status) and status["last_report_seconds_ago"] is not None and not status["refused"]

    def run_by(self, module: str, imports: Path) -> None:
        """Have a module be the agent from the next start on.

        :param imports: folder that it comes from.
        """
        ini = self.folder / "compute-agent.conf"
        command: list[str | Path] = [sys.executable, "-m", module, "--config-file", ini, "run"]
        environment = {"PYTHONPATH": str(imports)}
        self.program = Program("compute-agent", command, self.folder, self.is_up, environment)


@contextmanager
def host_agent(
    ground: Ground, host: CloudHost, more: str = "", program: str = "compute_agent.cmd.main"
) -> Iterator[HostAgent]:
    """A running agent.

    :param more: sections of its configuration.
    :param program: module that is the agent.
    """
    with folder_of(ground, f"agent-{host.name}") as folder:
        made = HostAgent(folder)
        own = credentials(ground.keystone, AGENT)
        made.configure(_CONFIG.format(folder=folder, credentials=own, host=host) + more)
        made.run_by(program, CHECKOUT)
        try:
            made.program.start()
            yield made
        finally:
            made.program.stop()
