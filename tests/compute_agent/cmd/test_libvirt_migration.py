"""Tests of a live migration by libvirt between two hosts with an agent each, as two libvirtd on one
machine.
"""

import subprocess

import pytest

from compute_agent.drivers import procfs
from tests.compute_agent.builders import hold_resources, release_resources
from tests.compute_agent.cmd.agents import SECONDS, AgentProcess, give_to_migration
from tests.compute_agent.libvirtd import Libvirtd, thread_cpus

SOURCE, DESTINATION = "testhost", "elsewhere"
CPUS = {SOURCE: ("0", "1"), DESTINATION: ("1", "0")}
"""The dedicated and the shared CPU of each host."""


class MigrationHost:
    """A libvirtd and its agent, which stand for one host."""

    def __init__(self, name, server, write_ini, folder):
        self.server = server
        self.dedicated, self.shared = CPUS[name]
        folder.mkdir()
        self.agent = AgentProcess(
            write_ini(
                f"{name}/agent.ini",
                DEFAULT=f"state_path = {folder / 'state'}\nlock_path = {folder / 'locks'}",
                compute=f"cpu_dedicated_set = {self.dedicated}\ncpu_shared_set = {self.shared}\n"
                f"resource_provider_name = {name}",
                guests="drivers = libvirt\nreconcile_interval = 0.3",
                libvirt=f"uri = {server.uri}",
            )
        )

    def start(self, client):
        self.agent.start_reporting()
        root = self.agent.status()["provider_uuid"]
        (self.node,) = (one.uuid for one in client.providers_in_tree(root) if one.parent_uuid == root)

    def has_pinned(self, domain):
        """Whether the guest's only guest CPU is on the dedicated CPU, and its other threads are on the shared
        CPU.
        """
        names = dict(thread_cpus(self.server.process(domain)))
        return (names.pop("CPU 0/TCG"), set().union(*names.values())) == ({self.dedicated}, {self.shared})


@pytest.fixture
def hosts(two_cpus, write_ini, tmp_path, client, libvirtd):
    """The source and the destination of a migration."""
    elsewhere = Libvirtd()
    made = [
        MigrationHost(name, server, write_ini, tmp_path / name)
        for name, server in ((SOURCE, libvirtd), (DESTINATION, elsewhere))
    ]
    try:
        elsewhere.start()
        for each in made:
            each.start(client)
        yield made
    finally:
        for each in made:
            each.agent.close()
        elsewhere.stop()


def virsh_migrate(domain, source, destination):
    """Migrate a running guest. Its memory goes over a UNIX socket, because the hosts have no common
    network.
    """
    there = destination.uri.replace("qemu:", "qemu+unix:")
    socket = f"unix://{destination.folder / 'migration'}"
    command = ["virsh", "-c", source.uri, "migrate", "--live", domain.name()]
    command += ["--desturi", there, "--migrateuri", socket]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3 * SECONDS, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_guest_keeps_its_cpu_until_it_has_one_at_its_new_host(hosts, client, uid):
    source, destination = hosts
    migration = f"{uid[:-4]}aaaa"
    source.server.run().destroy()  # the guest has another number there, and with it other cgroups
    hold_resources(client, uid, {source.node: {"PCPU": 1}})
    domain = source.server.run(uid, vcpus=1)
    source.agent.wait_for(lambda: source.has_pinned(domain))

    # The steps of Nova: its allocations go to the migration, then the destination is claimed.
    give_to_migration(client, uid, migration)
    hold_resources(client, uid, {destination.node: {"PCPU": 1}})
    assert source.agent.audit()[0] == 0
    assert source.agent.ask("guest", "show", uid)["migration"] == migration
    assert source.has_pinned(domain)
    process = source.server.process(domain)

    virsh_migrate(domain, source.server, destination.server)
    assert not procfs.identify_process(process)
    arrived = destination.server.connection.lookupByUUIDString(uid)
    destination.agent.wait_for(lambda: destination.has_pinned(arrived))
    shown = destination.agent.ask("guest", "show", uid)
    assert (shown["kind"], shown["dedicated_cpus"]) == ("dedicated", destination.dedicated)
    source.agent.wait_for(lambda: source.agent.status()["guests"] == 0)
    release_resources(client, migration)
    for each in (source.agent, destination.agent):
        each.wait_for(lambda: not each.status()["migrating_guests"])  # noqa: B023  # asked here and now
    assert destination.agent.audit() == (0, [])
