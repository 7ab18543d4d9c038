"""Configuration files of Nova."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.keystone import Keystone
from tests.openstack.identity import NOVA, authtoken, credentials

_SERVICES: Final = """\
[DEFAULT]
transport_url = {bus}
state_path = {folder}
my_ip = 127.0.0.1
rpc_response_timeout = 180
report_interval = 5
service_down_time = 600
# guests that do not listen, and requests that nobody waits for
shutdown_timeout = 1
manager_shutdown_timeout = 1
graceful_shutdown_timeout = 5
shelved_offload_time = -1
[oslo_concurrency]
lock_path = {folder}/locks
[oslo_messaging_rabbit]
heartbeat_in_pthread = false
[api]
auth_strategy = keystone
[conductor]
workers = 1
[scheduler]
workers = 1
[filter_scheduler]
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,NUMATopologyFilter
[vnc]
enabled = false
{authtoken}
[placement]
valid_interfaces = internal
{credentials}
[neutron]
valid_interfaces = internal
{credentials}
[glance]
valid_interfaces = internal
[service_user]
send_service_user_token = true
{credentials}
"""

_FAKE: Final = """\
[DEFAULT]
compute_driver = fake.FakeDriverWithoutFakeNodes
[compute]
provider_config_location = {folder}/provided
"""

_LIBVIRT: Final = """\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
update_resources_interval = {interval}
force_raw_images = false
reserved_host_memory_mb = 1024
[libvirt]
virt_type = qemu
connection_uri = {uri}
cpu_mode = none
hw_machine_type = x86_64=pc
images_type = raw
inject_partition = -2
[nova_sys_admin]
helper_command = {helper} --config-file {services}
[compute]
resource_provider_association_refresh = {interval}
provider_config_location = {folder}/provided
cpu_shared_set = {shared}
cpu_dedicated_set = {dedicated}
"""

_HOST: Final = """\
[DEFAULT]
host = {name}
state_path = {folder}
instances_path = {instances}
"""

_MIGRATING: Final = """\
[libvirt]
live_migration_uri = qemu+unix:///system?socket={sockets}/%s
live_migration_inbound_addr = {address}
"""

SOCKETS: Final = "sockets"
"""Folder of the cloud in which hosts find each other's libvirtd."""


@dataclass(frozen=True)
class CloudHost:
    """A compute host of a cloud; with CPUs its driver is libvirt, otherwise the fake driver.

    :param shared: the CPUs of guests that share them.
    :param interval: seconds from one update of Placement to the next, in which everything is read again.
    :param uri: URI of its libvirtd, if that is another one than the cloud's.
    :param address: address at which it takes guests from other hosts, if it does. Hosts that do share a
        folder of instances, and a folder with the socket of each libvirtd, by address.
    :param runner: command that runs programs of Nova by their names there, such as `nova-compute`.
    """

    name: str
    shared: str = ""
    dedicated: str = ""
    interval: int = 60
    uri: str = ""
    address: str = ""
    runner: tuple[str, ...] = ()

    def command(self, name: str, programs: Path) -> list[str]:
        """The command of a program of Nova on this host."""
        return [*self.runner, name] if self.runner else [str(programs / name)]


def databases(api: str, main: str) -> str:
    """Return the sections about databases."""
    return f"[api_database]\nconnection = {_quoted(api)}\n[database]\nconnection = {_quoted(main)}\n"


def services(folder: Path, keystone: Keystone, bus: str) -> str:
    """Return the common options of all services of a cloud, without databases."""
    return _SERVICES.format(
        folder=folder,
        bus=bus,
        authtoken=authtoken(keystone, NOVA, "compute"),
        credentials=credentials(keystone, NOVA),
    )


def compute(host: CloudHost, folder: Path, programs: Path, services: Path, uri: str) -> str:
    """Return the further options of one `nova-compute`.

    :param services: the file with the common options
    :param uri: of the libvirtd, where there is one.
    """
    template = _LIBVIRT if host.shared else _FAKE
    if host.address:
        template += _MIGRATING
    own = {
        "interval": host.interval,
        "folder": folder,
        "instances": (folder.parent if host.address else folder) / "instances",
        "sockets": folder.parent / SOCKETS,
        "address": host.address,
        "helper": " ".join(host.command("privsep-helper", programs)),
        "services": services,
        "uri": host.uri or uri,
    }
    return (_HOST + template).format(name=host.name, shared=host.shared, dedicated=host.dedicated, **own)


def _quoted(url: str) -> str:
    return url.replace("$", "$$")
