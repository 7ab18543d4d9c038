"""Tests of reading the flavor that Nova wrote into the XML of a domain."""

import pytest

from compute_agent.drivers.base import GuestFlavor
from compute_agent.drivers.libvirt.domain_metadata import read_flavor

PROJECT, USER = "b0a8f5ac57b7419a8eec6fd5ae31e5c5", "d3bd2f6b8e5a4f6aa3f1e6b1c2d3e4f5"


def domain(specs=None, root="image", numbers=(2048, 20, 0, 0, 4)):
    names = ("memory", "disk", "swap", "ephemeral", "vcpus")
    extra = (
        ""
        if specs is None
        else "".join(
            f'<nova:extraSpec name="{name}">{value}</nova:extraSpec>' for name, value in specs.items()
        )
    )
    return (
        "<domain><metadata>"
        '<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1"><nova:flavor name="f">'
        + "".join(f"<nova:{n}>{value}</nova:{n}>" for n, value in zip(names, numbers, strict=True))
        + ("" if specs is None else f"<nova:extraSpecs>{extra}</nova:extraSpecs>")
        + f'</nova:flavor><nova:owner><nova:user uuid="{USER}">me</nova:user>'
        f'<nova:project uuid="{PROJECT}">us</nova:project></nova:owner>'
        + (f'<nova:root type="{root}" uuid="x"/>' if root else "")
        + "</nova:instance></metadata></domain>"
    )


def test_a_flavor_is_read_with_its_owner():
    assert read_flavor(domain({})) == GuestFlavor({"MEMORY_MB": 2048, "DISK_GB": 20}, 0, PROJECT, USER)


def test_a_domain_without_novas_metadata_has_an_empty_flavor():
    assert read_flavor("<domain><metadata/></domain>") == GuestFlavor()


def test_dedicated_cpus_are_unknown_without_extra_specs_of_older_nova():
    assert read_flavor(domain()).dedicated is None


@pytest.mark.parametrize(
    ("specs", "dedicated"),
    [
        ({"hw:cpu_policy": "dedicated"}, 4),
        ({"hw:cpu_policy": "shared"}, 0),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0-1"}, 2),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "1-3"}, 3),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "?"}, None),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-99999999999"}, None),
        ({"resources:PCPU": "٤"}, 0),
        ({"resources:PCPU": "-4"}, 0),
        ({"resources:PCPU": "9" * 5000}, 2**31 - 1),
        ({"resources:PCPU": "4"}, 4),
    ],
)
def test_dedicated_cpus_follow_from_extra_specs(specs, dedicated):
    assert read_flavor(domain(specs)).dedicated == dedicated


@pytest.mark.parametrize(
    ("xml", "disk"),
    [
        (domain({}, numbers=(1, 20, 512, 5, 1)), 20 + 1 + 5),
        (domain({}, root="volume", numbers=(1, 20, 1025, 5, 1)), 2 + 5),
        (domain({}, root="", numbers=(1, 20, 0, 0, 1)), 0),
    ],
)
def test_swap_is_rounded_up_and_a_volume_is_no_disk_of_the_host(xml, disk):
    assert read_flavor(xml).resources.get("DISK_GB", 0) == disk


def test_extra_specs_add_to_resources_or_stand_in_their_place():
    specs = {
        "resources:MEMORY_MB": "512",
        "resources:DISK_GB": "0",
        "resources1:LLC": "2",
        "resources_B:LLC": "3",
        "resources:VCPU": "2",
        "resources:CUSTOM_X": "many",
        "trait:HW_CPU_X86_VMX": "required",
    }
    assert read_flavor(domain(specs)).resources == {"MEMORY_MB": 512, "LLC": 5}


@pytest.mark.parametrize("vcpus", [0, -1, 10**9, "many"])
def test_an_impossible_number_of_guest_cpus_is_no_error(vcpus):
    specs = {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0"}
    assert read_flavor(domain(specs, numbers=(2048, 0, 0, 0, vcpus))).dedicated is None


@pytest.mark.parametrize("xml", ["", "<domain", "<!DOCTYPE d [<!ENTITY a 'b'>]><domain/>"])
def test_text_that_is_no_xml_of_a_domain_is_refused(xml):
    with pytest.raises(ValueError, match="XML"):
        read_flavor(xml)


def test_amounts_that_are_no_numbers_do_not_count():
    assert read_flavor(domain({}, numbers=("x", "", 0, 0, 1))).resources == {}


@pytest.mark.parametrize(
    ("specs", "numbers"),
    [
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0"}, {1, 2, 3}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "1,3"}, {1, 3}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "2-3"}, {2, 3}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "?"}, set()),
        ({"hw:cpu_policy": "dedicated", "hw:cpu_dedicated_mask": "1"}, set()),
        ({}, set()),
    ],
)
def test_the_mask_of_a_flavor_says_which_guest_cpus_are_dedicated(specs, numbers):
    assert read_flavor(domain(specs)).dedicated_vcpus == numbers
