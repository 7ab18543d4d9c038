"""Tests that PCI devices are read again only after an event of the kernel or a changed address."""

import functools

import pytest

from compute_agent.agent.reload import DeviceSurvey, host_signature
from tests.compute_agent.agent.cache_agent import host_tree
from tests.compute_agent.agent.running import RunningAgent
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree

GPU = "0000:81:00.0"


@pytest.fixture
def root(tmp_path):
    return make_pci_tree(tmp_path, [FakeDevice(("0000:80:01.0", GPU), node=1)])


def test_a_change_of_drivers_and_links_is_no_change_of_the_host(root, load):
    conf = load(f"[host]\nroot = {root}\n[pci]\nnodes = attributes\n")
    survey = DeviceSurvey()
    before = host_signature(conf, survey.read_devices(conf))
    folder = root / "sys/bus/pci/devices" / GPU
    (folder / "driver").symlink_to("/sys/bus/pci/drivers/vfio-pci")
    (folder / "current_link_width").write_text("8\n")
    (folder / "nvme/nvme0").mkdir(parents=True)
    (folder / "nvme/nvme0/model").write_text("Disk\n")
    (folder / "net/ens1").mkdir(parents=True)
    fresh = DeviceSurvey()
    assert host_signature(conf, fresh.read_devices(conf)) == before
    for one in (survey, fresh):
        one.close()


def test_another_device_in_its_place_is_noticed(root, load):
    conf = load(f"[host]\nroot = {root}\n[pci]\ndevice_spec = {{}}\n")
    survey = DeviceSurvey()
    before = survey.read_devices(conf)
    (root / "sys/bus/pci/devices" / GPU / "device").write_text("0x2330\n")
    fresh = DeviceSurvey()
    assert fresh.read_devices(conf) != before
    (root / "sys/bus/pci/devices" / GPU).unlink()
    assert len(survey.read_devices(conf)) == len(before) - 1
    for one in (survey, fresh):
        one.close()


def test_types_of_a_driver_that_was_loaded_later_are_noticed(root, load):
    conf = load(f"[host]\nroot = {root}\n[pci]\ndevice_spec = {{}}\n")

    def read():
        survey = DeviceSurvey()
        try:
            return survey.read_devices(conf)
        finally:
            survey.close()

    before = read()
    folder = root / "sys/bus/pci/devices" / GPU / "mdev_supported_types/nvidia-35"
    folder.mkdir(parents=True)
    (folder / "available_instances").write_text("4\n")
    with_types = read()
    assert with_types != before
    # A guest that gets a mediated device changes nothing.
    (folder / "available_instances").write_text("3\n")
    (folder / "devices/4b20d080-1b54-4048-85b3-a6a62d165c01").mkdir(parents=True)
    assert read() == with_types


def test_a_change_of_novas_files_is_noticed(root, load, tmp_path):
    nova = tmp_path / "nova.conf"
    ini = f"[host]\nroot = {root}\n[pci]\nnova_config = {nova}\n"
    conf, without_devices = load(f"{ini}device_spec = {{}}\n"), load(ini)
    before = host_signature(conf), host_signature(without_devices)
    nova.write_text("[pci]\ndevice_spec = {}\n")
    assert host_signature(conf) != before[0]
    assert host_signature(without_devices) == before[1]


def test_a_host_without_options_of_devices_reads_none(root, load):
    survey = DeviceSurvey()
    assert survey.read_devices(load(f"[host]\nroot = {root}\n")) == ()
    survey.close()


@pytest.mark.parametrize("section", [{"policy": "name = nonsense"}, {"pci": "device_spec = {"}])
def test_a_device_goes_while_the_configuration_of_the_files_is_refused(
    two_cpus, tmp_path, write_ini, client, section
):
    host = tmp_path / "host"
    host_tree(host)
    make_pci_tree(host, [FakeDevice(("0000:80:01.0", GPU), node=1)])
    write_host = functools.partial(
        write_ini, host=f"root = {host}", pci='device_spec = {"vendor_id": "10de"}'
    )
    rig = RunningAgent(write_host, client)

    def offered():
        return [node.device for node in rig.agent.pipeline.host_state.tree.nodes if node.device]

    try:
        assert offered() == [GPU]
        rig.write_ini(**section)
        rig.reload_changes()
        assert rig.ask("status")["config_error"]
        assert offered() == [GPU]
        (host / "sys/bus/pci/devices" / GPU).unlink()
        rig.reload_changes()
        rig.wait_for(lambda: offered() == [])
        assert rig.ask("status")["config_error"]
    finally:
        rig.close()
