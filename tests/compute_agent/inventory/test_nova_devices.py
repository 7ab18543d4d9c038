"""Devices that nova-compute gives to guests without Placement are not offered."""

from pathlib import Path

import pytest

from compute_agent.agent.configured_host import build_host_state
from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.device_spec import parse_device_specs
from compute_agent.inventory.nova_devices import NovaDevices, read_nova_devices, without_novas
from tests.compute_agent.agent.cache_agent import host_tree
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree

ANY = parse_device_specs(["{}"])


def read(folder: Path, text: str) -> NovaDevices:
    path = folder / "nova.conf"
    path.write_text(text)
    return read_nova_devices([path])


def device(address: str, vendor: str = "10de", physical: str | None = None) -> PciDevice:
    return PciDevice(address, vendor, "2331", 0x030200, physical_function=physical)


def test_devices_that_placement_does_not_know_are_left_out(tmp_path):
    nova = read(tmp_path, '[pci]\ndevice_spec = {"vendor_id": "10de"}\n')
    left, (sentence,) = without_novas(nova, ANY, [device("0000:81:00.0"), device("0000:82:00.0", "8086")])
    assert [each.address for each in left] == ["0000:82:00.0"]
    assert sentence.startswith("0000:81:00.0: nova-compute gives them to guests without Placement")


def test_reported_devices_are_told_by_their_providers(tmp_path):
    nova = read(tmp_path, "[pci]\nreport_in_placement = True\ndevice_spec = {}\n")
    assert nova.reports
    devices = (device("0000:81:00.0"),)
    assert without_novas(nova, ANY, devices) == (devices, ())


def test_devices_of_neutron_are_never_in_placement(tmp_path):
    nova = read(
        tmp_path, '[pci]\nreport_in_placement = true\ndevice_spec = {"physical_network": "tenants"}\n'
    )
    left, sentences = without_novas(nova, ANY, [device("0000:81:00.0")])
    assert (left, len(sentences)) == ((), 1)


def test_a_card_is_novas_as_a_whole(tmp_path):
    nova = read(tmp_path, '[pci]\npassthrough_whitelist = {"address": "0000:81:00.1"}\n')
    card = [device("0000:81:00.0"), *(device(f"0000:81:00.{at}", physical="0000:81:00.0") for at in (1, 2))]
    left, (sentence,) = without_novas(nova, ANY, card)
    assert left == ()
    assert sentence.startswith("0000:81:00.0: ")


def test_devices_that_the_agent_does_not_select_need_no_sentence(tmp_path):
    nova = read(tmp_path, "[pci]\ndevice_spec = {}\n")
    assert without_novas(nova, (), [device("0000:81:00.0")]) == ((), ())


def test_a_later_file_overrides_an_earlier_one(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("[pci]\ndevice_spec = {}\n")
    second.write_text("[pci]\nreport_in_placement = yes\n")
    found = read_nova_devices([first, second, tmp_path / "missing"])
    assert (len(found.specs), found.reports, found.warnings) == (1, True, ())


@pytest.mark.parametrize("text", ["[pci\n", "\xff".encode("latin-1"), "[pci]\ndevice_spec = {\n"])
def test_unreadable_files_are_named(tmp_path, text):
    path = tmp_path / "nova.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (warning,) = read_nova_devices([path]).warnings
    assert warning.startswith("[pci] nova_config: ")


def test_a_folder_in_its_place_is_said(tmp_path):
    (warning,) = read_nova_devices([tmp_path]).warnings
    assert "cannot be read" in warning


def test_the_agent_reads_the_option(tmp_path, load):
    root = tmp_path / "host"
    host_tree(root)
    make_pci_tree(
        root, [FakeDevice(("0000:80:01.0", "0000:81:00.0")), FakeDevice(("0000:80:02.0", "0000:82:00.0"))]
    )
    nova = tmp_path / "nova.conf"
    nova.write_text('[pci]\ndevice_spec = {"address": "0000:81:00.0"}\n')
    ini = f"[host]\nroot = {root}\n[pci]\nnova_config = {nova}\ndevice_spec = {{}}\n"
    state = build_host_state(load(ini))
    assert [node.device for node in state.tree.device_providers] == ["0000:82:00.0"]
    assert any("0000:81:00.0: nova-compute gives them" in each for each in state.warnings)
