"""Tests of libvirt's hook with a real libvirtd: cache groups exist before the domains start."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest

from compute_agent.drivers.libvirt import hook
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.resctrl.groups import read_tasks
from tests.compute_agent.agent.cache_agent import CacheAgent
from tests.compute_agent.libvirtd import EMULATOR, Libvirtd, LibvirtMissing

pytestmark = pytest.mark.slow

PATIENCE = 400
"""Looks, 50 ms apart."""

WRAPPER = """\
#!/bin/sh
# In place of QEMU: waits until it is in a resctrl group of a guest, which is before the guest has any CPU.
# While a file "held" is there it and a fork of it stay.
case " $* " in *" -uuid "*)
  looks=0
  until grep -qx $$ {groups}/compute-agent.guest.*/tasks 2>/dev/null || [ $looks = {patience} ]; do
    sleep 0.05
    looks=$((looks + 1))
  done
  echo $looks > {folder}/looks
  (while [ -e {folder}/held ]; do sleep 0.05; done) &
  while [ -e {folder}/held ]; do sleep 0.05; done
esac
exec {emulator} "$@"
"""


@pytest.fixture
def hooked():
    """A libvirtd with the hook. No other test has guests there."""
    try:
        server = Libvirtd()
    except LibvirtMissing as missing:
        pytest.skip(str(missing))
    try:
        if not server.is_system:
            pytest.skip("a session daemon has its hooks elsewhere")
        yield server
    finally:
        server.stop()


@pytest.fixture
def rig(two_cpus, hooked, write_ini, client, files, tmp_path):
    hook.install_hook(hooked.hooks, tmp_path / "state/agent.sock")
    hooked.start()
    ini = functools.partial(
        write_ini,
        host=f"root = {tmp_path}/host",
        guests="drivers = libvirt\nreconcile_interval = 1",
        libvirt=f"uri = {hooked.uri}",
    )
    rig = CacheAgent(ini, client, files)
    yield rig
    rig.agent.stop()


@pytest.fixture
def uid():
    return "00000000-0000-4000-8000-000000000001"


def waiting_emulator(files, folder):
    path = folder / "qemu"
    path.write_text(WRAPPER.format(groups=files.root, patience=PATIENCE, folder=folder, emulator=EMULATOR))
    path.chmod(0o755)
    return path


def test_a_domain_is_in_its_cache_group_before_it_has_cpus(rig, hooked, uid, tmp_path):
    rig.claim_on(uid, {rig.l3(1): {"LLC": 4}})
    xml = hooked.xml(uid, vcpus=2).replace(EMULATOR, str(waiting_emulator(rig.files, tmp_path)))
    domain = hooked.connection.createXML(xml)
    pid = hooked.process(domain)
    assert int((tmp_path / "looks").read_text()) < PATIENCE
    group = f"compute-agent.guest.{uid}"
    assert pid in read_tasks(rig.files, group)
    assert len(rig.mask(group, 1)) == 4
    guest = rig.wait_for(lambda: next(iter(rig.ask("guest.list")), None))
    assert (guest["pid"], rig.groups()[group]["guests"]) == (pid, [domain.name()])
    rig.wait_for(lambda: rig.ask("guest.show", guest=uid)["cache_group_delay"] is not None)
    count = rig.agent.metrics.registry.get_sample_value("compute_agent_cache_group_seconds_count")
    assert count == 1
    domain.destroy()
    rig.wait_for(lambda: group not in rig.groups())


def test_a_domain_is_no_guest_before_its_start_is_over(rig, hooked, uid, tmp_path, monkeypatch):
    """Calls on the domain would wait in libvirtd, and a fork of the ending wrapper would keep the group in
    use.
    """
    looks, held, running = [], tmp_path / "held", LibvirtConnection.active_domains
    monkeypatch.setattr(
        LibvirtConnection, "active_domains", lambda self: looks.append(running(self)) or looks[-1]
    )
    held.touch()
    rig.claim_on(uid, {rig.l3(1): {"LLC": 4}})
    xml = hooked.xml(uid, vcpus=2).replace(EMULATOR, str(waiting_emulator(rig.files, tmp_path)))
    with ThreadPoolExecutor(1) as starts:
        start = starts.submit(hooked.connection.createXML, xml)
        try:
            group = f"compute-agent.guest.{uid}"
            rig.wait_for(lambda: (tmp_path / "looks").exists())
            made = (rig.files.root / group).stat().st_ino
            rig.wait_for(lambda: sum(map(len, looks)) >= 2)
            assert rig.ask("guest.list") == []
        finally:
            held.unlink()
        domain = start.result(60)
    pid = hooked.process(domain)
    assert rig.wait_for(lambda: next(iter(rig.ask("guest.list")), None))["pid"] == pid
    rig.wait_for(lambda: rig.ask("guest.show", guest=uid)["cache_group_delay"] is not None)
    assert pid in read_tasks(rig.files, group)
    assert (rig.files.root / group).stat().st_ino == made


def test_without_an_agent_domains_start_and_have_their_groups_when_it_comes(rig, hooked, uid):
    """The same holds when libvirtd starts again: a hook that failed then would end the domains."""
    rig.claim_on(uid, {rig.l3(1): {"LLC": 4}})
    rig.agent.stop()
    domain = hooked.run(uid, vcpus=1)
    hooked.kill()
    hooked.start()
    (domain,) = hooked.connection.listAllDomains()
    assert domain.isActive()
    rig.start_again()
    group = f"compute-agent.guest.{uid}"
    rig.wait_for(lambda: group in rig.groups() and hooked.process(domain) in read_tasks(rig.files, group))
    assert rig.ask("guest.show", guest=uid)["cache_group_delay"] is None


def test_without_the_hook_the_delay_is_measured(rig, hooked, uid):
    hook.hook_path(hooked.hooks).unlink()
    rig.claim_on(uid, {rig.l3(1): {"LLC": 4}})
    hooked.run(uid, vcpus=1)
    guest = rig.wait_for(lambda: next(iter(rig.ask("guest.list")), None))
    rig.wait_for(lambda: (rig.ask("guest.show", guest=uid)["cache_group_delay"] or 0) > 0)
    assert guest["pid"] in read_tasks(rig.files, f"compute-agent.guest.{uid}")
