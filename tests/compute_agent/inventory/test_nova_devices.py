"""Tests that the agent does not offer devices that nova-compute gives to guests without Placement."""

from pathlib import Path

import pytest
from oslo_config import cfg

from compute_agent.agent.configured_host import build_host_state
from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.device_spec import (
    NovaDevices,
    parse_device_specs,
    read_nova_devices,
    without_novas,
)
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


def test_a_message_names_only_the_first_devices(tmp_path):
    nova = read(tmp_path, "[pci]\ndevice_spec = {}\n")
    left, (sentence,) = without_novas(nova, ANY, [device(f"0000:8{n}:00.0") for n in range(8)])
    assert left == ()
    assert sentence.startswith(
        "0000:80:00.0, 0000:81:00.0, 0000:82:00.0, 0000:83:00.0, 0000:84:00.0 and 3 more:"
    )


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


def test_the_entries_of_all_files_count_and_the_last_other_option(tmp_path):
    files = [tmp_path / name for name in "abc"]
    first, second, third = (f"0000:8{n}:00.0" for n in (1, 2, 3))
    files[0].write_text(
        f'[DEFAULT]\npci_passthrough_whitelist = {{"address": "{first}"}}\n'
        "[pci]\nreport_in_placement = true\n"
    )
    files[1].write_text(
        f'[pci]\ndevice_spec = {{"address": "{second}"}}\npassthrough_whitelist = {{"address": "{third}"}}\n'
        "report_in_placement = false\n"
    )
    files[2].write_text('[pci]\ndevice_spec = {"address": "0000:84:00.0"}\n')
    found = read_nova_devices([*files, tmp_path / "missing"])
    assert (len(found.specs), found.reports, found.problems) == (4, False, ())
    left, (sentence,) = without_novas(found, ANY, [device(f"0000:8{n}:00.0") for n in (1, 2, 3, 4, 5)])
    assert [each.address for each in left] == ["0000:85:00.0"]
    assert sentence.startswith("0000:81:00.0, 0000:82:00.0, 0000:83:00.0")


def test_oslo_config_reads_the_same_entries(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for number, path in enumerate(files):
        path.write_text(
            f'[pci]\ndevice_spec = {{"address": "{number}.0"}}\n'
            f'passthrough_whitelist = {{"address": "{number}.1"}}\n'
            f'[PCI]\ndevice_spec = {{"address": "{number}.2"}}\n'
        )
    conf = cfg.ConfigOpts()
    old = cfg.DeprecatedOpt("passthrough_whitelist", group="pci")
    conf.register_opt(cfg.MultiStrOpt("device_spec", deprecated_opts=[old]), "pci")
    conf([], default_config_files=[str(path) for path in files], default_config_dirs=[])
    assert [spec.text for spec in read_nova_devices(files).specs] == conf.pci.device_spec


@pytest.mark.parametrize(
    "text",
    [
        "[pci\n",
        "\xff".encode("latin-1"),
        "[pci]\ndevice_spec = {\n",
        '[pci]\ndevice_spec = {"devname": "eth3", "physical_network": "tenants"}\n',
        '[pci]\nreport_in_placement = true\ndevice_spec = {"new_key": "1"}\n',
    ],
)
def test_no_device_is_offered_while_something_cannot_be_read(tmp_path, text):
    path = tmp_path / "nova.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    nova = read_nova_devices([path])
    devices = [device("0000:81:00.0"), device("0000:82:00.0", "8086")]
    own = parse_device_specs(['{"vendor_id": "10de"}'])
    left, (problem, withheld) = without_novas(nova, own, devices)
    assert left == (devices[1],)
    assert problem.startswith("[pci] nova_config: ")
    assert withheld.startswith(
        "0000:81:00.0: nova-compute may give them to guests, so the agent does not offer"
    )
    assert without_novas(nova, (), devices) == (tuple(devices), ())


def test_a_folder_in_its_place_is_said(tmp_path):
    (problem,) = read_nova_devices([tmp_path]).problems
    assert "cannot be read" in problem


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
    nova.write_text('[pci]\ndevice_spec = {"devname": "eth3"}\n')
    state = build_host_state(load(ini))
    assert state.tree.device_providers == ()
    assert any("does not offer them until it can read all" in each for each in state.warnings)
