"""Tests that entries of [pci] device_spec select the same devices as in Nova."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.device_spec import DeviceSpec, address_fields, match_devices, parse_device_specs
from compute_agent.model.messages import ConfigError

PF = PciDevice("0000:81:00.0", "8086", "1572", 0x020000, max_virtual=4)
VF = PciDevice("0000:81:02.1", "8086", "154c", 0x020000, physical_function="0000:81:00.0")
GPU = PciDevice("0000:0a:00.0", "10de", "2331", 0x030200)
BRIDGE = PciDevice("0000:80:02.0", "8086", "a000", 0x060400)
ALL = (GPU, BRIDGE, PF, VF)


def selected(*specs: object) -> list[str]:
    parsed = parse_device_specs([json.dumps(each) for each in specs])
    return [device.address for device, _ in match_devices(parsed, ALL)]


@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        ({}, [GPU, PF, VF]),
        ({"vendor_id": "10de"}, [GPU]),
        ({"vendor_id": "10DE", "product_id": "2331"}, [GPU]),
        ({"vendor_id": "*", "product_id": "154c"}, [VF]),
        ({"address": "0000:81:00.0"}, [PF, VF]),  # the address of a card selects its virtual functions
        ({"address": "0000:81:00.0", "product_id": "1572"}, [PF]),
        ({"address": "81:00.*"}, [PF]),  # a pattern does not
        ({"address": "*:0a:*.*"}, [GPU]),
        ({"address": "0a:"}, [GPU]),
        ({"address": ":00."}, [GPU, PF]),
        ({"address": ".1"}, [VF]),
        ({"address": {"bus": "81", "slot": "0[0-2]"}}, [PF, VF]),
        ({"address": {"bus": "8"}}, [PF, VF]),  # from the beginning of the field, as in Nova
        ([{"product_id": "1572"}, {"product_id": "2331"}], [GPU, PF]),
    ],
)
def test_an_entry_selects_devices(spec: object, devices: list[PciDevice]) -> None:
    assert selected(spec) == [device.address for device in devices]


def test_the_first_entry_that_matches_counts() -> None:
    specs = parse_device_specs(['{"product_id": "2331", "resource_class": "gpu"}', '{"traits": "x"}'])
    found = {device.address: spec for device, spec in match_devices(specs, ALL)}
    assert (found[GPU.address].class_of(GPU), found[GPU.address].traits) == ("CUSTOM_GPU", frozenset())
    assert found[PF.address].class_of(PF) == "CUSTOM_PCI_8086_1572"
    assert found[PF.address].traits == {"CUSTOM_X"}


@pytest.mark.parametrize(
    ("written", "name"),
    [("gpu-h100", "CUSTOM_GPU_H100"), ("PGPU", "PGPU"), ("pgpu", "PGPU"), ("CUSTOM_A", "CUSTOM_A")],
)
def test_classes_have_the_names_that_nova_makes(written: str, name: str) -> None:
    (spec,) = parse_device_specs([json.dumps({"resource_class": written})])
    assert spec.class_of(GPU) == name


def test_traits_have_the_names_that_nova_makes() -> None:
    (spec,) = parse_device_specs(['{"traits": "HW_GPU_API_VULKAN, nvlink-4,CUSTOM_Q,"}'])
    assert spec.traits == {"HW_GPU_API_VULKAN", "CUSTOM_NVLINK_4", "CUSTOM_Q"}


@pytest.mark.parametrize(
    ("tag", "trait"),
    [("live_migratable", "HW_PCI_LIVE_MIGRATABLE"), ("one_time_use", "HW_PCI_ONE_TIME_USE")],
)
def test_tags_of_devices_are_traits(tag: str, trait: str) -> None:
    spec, other = parse_device_specs([f'{{"{tag}": "yes"}}', f'{{"{tag}": "no"}}'])
    assert (spec.traits, other.traits) == ({trait}, set())


@pytest.mark.parametrize("tag", [{"physical_network": "net1"}, {"remote_managed": "true"}])
def test_devices_of_neutron_are_marked(tag: dict[str, str]) -> None:
    (spec,) = parse_device_specs([json.dumps(tag)])
    assert spec.neutrons


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("3", "3 is not a JSON object"),
        ('[{}, "a"]', "'a' is not a JSON object"),
        ('{"vendor": "10de"}', "unknown key vendor; known are address, "),
        ('{"vendor_id": "xyz"}', "vendor_id 'xyz' is not a hexadecimal number"),
        ('{"vendor_id": 4318}', "vendor_id is 4318, not a text"),
        ('{"product_id": "12345"}', "product_id 12345 is not between 0 and FFFF"),
        ('{"address": "0000:81:20.0"}', "slot 20 is not between 0 and 1F"),
        ('{"address": "0000:81:00.8"}', "function 8 is not between 0 and 7"),
        ('{"address": "1:2:3:4.0"}', "address '1:2:3:4.0' is not DOMAIN:BUS:SLOT.FUNCTION"),
        ('{"address": 3}', "address is 3, neither a text nor an object"),
        ('{"address": {"bus": "["}}', "bus '[' of the address is not a regular expression"),
        ('{"address": {"bus": "a{99999999999}"}}', "is not a regular expression"),
        ('{"address": {"bus": 3}}', "bus 3 of the address is not a regular expression"),
        ('{"address": {"buss": "1"}}', "unknown field buss"),
        ('{"address": {"\\ud800": "1"}}', "unknown field \N{REPLACEMENT CHARACTER};"),
        ('{"\\ud800": 1}', "unknown key \N{REPLACEMENT CHARACTER};"),
        ('{"devname": "eth0"}', "its network interface goes then: use address"),
        ('{"resource_class": "pcpu"}', "resource_class PCPU has another meaning to the agent"),
        ('{"resource_class": "LLC"}', "resource_class CUSTOM_LLC has another meaning to the agent"),
        ('{"traits": "COMPUTE_MANAGED_PCI_DEVICE"}', "marks devices that nova-compute reports: remove it"),
        (json.dumps({"resource_class": "X" * 300}), "is not a name that Placement accepts"),
        ("[" * 5000, "not JSON"),
    ],
)
def test_wrong_entries_are_refused_with_option_and_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_device_specs([text])
    assert str(error.value).startswith("[pci] device_spec = ")
    assert reason in str(error.value)


words = st.text(st.sampled_from("0123456789abcdefxX*:. [](){}+?\\é"), max_size=12)
values = st.one_of(
    words,
    st.integers(),
    st.none(),
    st.booleans(),
    st.lists(words, max_size=2),
    st.dictionaries(st.sampled_from(["domain", "bus", "slot", "function", "x"]), words, max_size=3),
)
keys = st.sampled_from(
    ["vendor_id", "product_id", "address", "devname", "resource_class", "traits", "managed"]
)


@given(st.dictionaries(keys, values, max_size=4))
def test_any_entry_is_understood_or_refused(entry: dict[str, object]) -> None:
    try:
        specs = parse_device_specs([json.dumps(entry)])
    except ConfigError:
        return
    for device, spec in match_devices(specs, ALL):
        assert isinstance(spec, DeviceSpec)
        assert re.fullmatch("[A-Z0-9_]+", spec.class_of(device))


def test_fields_of_an_address_are_split() -> None:
    assert address_fields("10000:e1:1f.7") == ("10000", "e1", "1f", "7")
