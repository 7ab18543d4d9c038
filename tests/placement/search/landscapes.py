"""Snapshots that show the rules of candidates: hosts with shared disks, NUMA nodes, devices and networks."""

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from tests.placement.search.snapshots import Spec, build, inventory


def shared_storage() -> ModelSnapshot:
    """Two hosts with PFs below NUMA nodes, and two disks shared with both hosts. The second host also has a
    disk of its own.
    """
    host = {
        "VCPU": inventory(24, allocation_ratio=16.0),
        "MEMORY_MB": inventory(131072, allocation_ratio=1.5),
    }
    disk = inventory(2000, reserved=100)
    specs = [
        Spec("cn1", None, host, ["HW_CPU_X86_SSE", "HW_CPU_X86_SSE2"], ["agg"]),
        Spec("cn2", None, {**host, "DISK_GB": disk}, (), ["agg"]),
        Spec("ss1", None, {"DISK_GB": disk}, [SHARES], ["agg"]),
        Spec("ss2", None, {"DISK_GB": disk}, [SHARES], ["agg"]),
    ]
    for host_number in (1, 2):
        for numa in (1, 2):
            specs.append(Spec(f"numa{host_number}_{numa}", f"cn{host_number}"))
            specs.append(
                Spec(f"pf{host_number}_{numa}", f"numa{host_number}_{numa}", {"SRIOV_NET_VF": inventory(8)})
            )
    return build(*specs)


def numa_aggregates() -> ModelSnapshot:
    """A host with aggregates on its root and on one NUMA node. A disk is shared through each aggregate."""
    return build(
        Spec("cn1", aggregates=["aggA"]),
        Spec("cn2", aggregates=["aggA", "aggB"]),
        Spec("ss1", None, {"DISK_GB": 2000}, [SHARES], ["aggA"]),
        Spec("ss2", None, {"DISK_GB": 2000}, [SHARES], ["aggC"]),
        Spec("numa1_1", "cn1", {"VCPU": 24}, (), ["aggC"]),
        Spec("numa1_2", "cn1", {"VCPU": 24}),
        Spec("numa2_1", "cn2", {"VCPU": 24}),
        Spec("numa2_2", "cn2", {"VCPU": 24}),
    )


def granular() -> ModelSnapshot:
    """Three hosts of different kinds, two shared disks and a shared network."""
    host = {"VCPU": 8, "MEMORY_MB": 4096}
    network = {"SRIOV_NET_VF": 16, "CUSTOM_NET_MBPS": 40000}
    return build(
        Spec(
            "left",
            None,
            {**host, "DISK_GB": 500, "VGPU": 8, "SRIOV_NET_VF": 8, "CUSTOM_NET_MBPS": 4000},
            ["HW_CPU_X86_AVX", "HW_GPU_API_DXVA", "CUSTOM_FOO"],
            ["aggA"],
        ),
        Spec(
            "middle", None, host, ["HW_CPU_X86_AVX", "HW_CPU_X86_SSE", "HW_NIC_ACCEL_TLS"], ["aggA", "aggB"]
        ),
        Spec(
            "right",
            None,
            {**host, "DISK_GB": 500, "VGPU": inventory(8, max_unit=2)},
            ["HW_CPU_X86_MMX", "HW_GPU_API_DXVA", "CUSTOM_DISK_SSD"],
            ["aggB", "aggC"],
        ),
        Spec("disk1", None, {"DISK_GB": 1000}, [SHARES, "CUSTOM_DISK_SSD"], ["aggA"]),
        Spec("disk2", None, {"DISK_GB": 1000}, [SHARES], ["aggA", "aggB"]),
        Spec("net", None, network, [SHARES], ["aggC"]),
    )


def numa_network() -> ModelSnapshot:
    """A host with two NUMA nodes with accelerators and networks, a host with three NICs, and a shared
    disk.
    """
    node = {"VCPU": 4, "MEMORY_MB": 2048}
    bandwidth = {"NET_BW_EGR_KILOBIT_PER_SEC": 10000}
    functions = {
        "nic1": {"pf1_1": (1, 4), "pf1_2": (2, 4)},
        "nic2": {"pf2_1": (1, 2), "pf2_2": (2, 2), "pf2_3": (1, 2), "pf2_4": (2, 2)},
        "nic3": {"pf3_1": (1, 8)},
    }
    specs = [
        Spec("ss1", None, {"DISK_GB": 2000}, [SHARES], ["agg"]),
        Spec("cn1", None, {}, ["COMPUTE_VOLUME_MULTI_ATTACH"], ["agg"]),
        Spec("numa0", "cn1", node, ["HW_NUMA_ROOT"]),
        Spec("numa1", "cn1", node, ["HW_NUMA_ROOT", "CUSTOM_FOO"]),
        Spec("fpga0", "numa0", {"FPGA": 1}),
        Spec("fpga1_0", "numa1", {"FPGA": 1}),
        Spec("fpga1_1", "numa1", {"FPGA": 1}),
        Spec("pgpu0", "numa0", {"VGPU": 8}),
        Spec("agent", "cn1", {}, ["CUSTOM_VNIC_TYPE_DIRECT"]),
        Spec("esn1", "agent", bandwidth, ["CUSTOM_PHYSNET1"]),
        Spec("esn2", "agent", bandwidth, ["CUSTOM_PHYSNET2"]),
        Spec("cn2", None, {"VCPU": 8, "MEMORY_MB": 2048, "DISK_GB": 2000}, ["CUSTOM_FOO"], ["agg"]),
    ]
    for nic, ports in functions.items():
        specs.append(Spec(nic, "cn2", {}, ["CUSTOM_HW_NIC_ROOT"]))
        for name, (net, size) in ports.items():
            specs.append(Spec(name, nic, {"CUSTOM_VF": size}, [f"CUSTOM_PHYSNET{net}"]))
    return build(*specs)
