"""The worlds that the conformance suite's requests start from.

The worlds are derived from the files of requests: from expected amounts and numbers of candidates, from
comments, and from the names of environment variables with UUIDs.
"""

from dataclasses import replace
from typing import Final

from tests.conformance.world import Allocation, FixtureWorld, Inventory, Provider

SHARES: Final = "MISC_SHARES_VIA_AGGREGATE"


def _of(**totals: int) -> dict[str, Inventory]:
    """Return inventories with these totals and otherwise default fields."""
    return {name: {"total": total} for name, total in totals.items()}


EMPTY: Final = FixtureWorld()

# One provider with three consumers. Of DISK_GB 1,020 are used and of VCPU 7, so that 2 more fit and 4 do not.
# Each inventory and each allocation was one request: the provider's generation is 5.
ALLOCATIONS: Final = FixtureWorld(
    providers=(
        Provider(
            "RP_UUID",
            "rp_name",
            inventories={
                "DISK_GB": {"total": 2048, "step_size": 10, "min_unit": 10, "max_unit": 1000},
                "VCPU": {"total": 10, "max_unit": 10},
            },
        ),
    ),
    allocations=(
        Allocation("CONSUMER_0", "PROJECT_ID", "USER_ID", "RP_UUID", {"DISK_GB": 1000}),
        Allocation("CONSUMER_ID", "PROJECT_ID", "USER_ID", "RP_UUID", {"VCPU": 6}),
        Allocation("ALT_CONSUMER_ID", "PROJECT_ID", "ALT_USER_ID", "RP_UUID", {"DISK_GB": 20, "VCPU": 1}),
    ),
)

_COMPUTE: Final[dict[str, Inventory]] = {
    "VCPU": {"total": 24, "allocation_ratio": 16.0},
    "MEMORY_MB": {"total": 128 * 1024, "allocation_ratio": 1.5},
}
_DISK: Final[dict[str, Inventory]] = {"DISK_GB": {"total": 2000, "reserved": 100}}

#            cn1                        cn2 (DISK_GB)           ss, ss2 (DISK_GB, sharing)
#          /     \                    /     \                   all four in one aggregate
#     numa1_1   numa1_2          numa2_1   numa2_2
#        |         |                |         |
#      pf1_1     pf1_2            pf2_1     pf2_2
SHARED_STORAGE: Final = FixtureWorld(
    providers=(
        Provider(
            "CN1_UUID",
            "cn1",
            inventories=_COMPUTE,
            traits=("HW_CPU_X86_SSE", "HW_CPU_X86_SSE2"),
            aggregates=("AGGA_UUID",),
        ),
        Provider("CN2_UUID", "cn2", inventories=_COMPUTE | _DISK, aggregates=("AGGA_UUID",)),
        Provider("SS_UUID", "ss", inventories=_DISK, traits=(SHARES,), aggregates=("AGGA_UUID",)),
        Provider("SS2_UUID", "ss2", inventories=_DISK, traits=(SHARES,), aggregates=("AGGA_UUID",)),
        *(
            provider
            for host in ("1", "2")
            for number in ("1", "2")
            for provider in (
                Provider(f"NUMA{host}_{number}_UUID", f"numa{host}_{number}", parent=f"CN{host}_UUID"),
                Provider(
                    f"PF{host}_{number}_UUID",
                    f"pf{host}_{number}",
                    parent=f"NUMA{host}_{number}_UUID",
                    inventories=_of(SRIOV_NET_VF=8),
                ),
            )
        ),
    )
)

# Three hosts with disks of their own. The requests put them into aggregates.
NON_SHARED_STORAGE: Final = FixtureWorld(
    providers=tuple(Provider(f"CN{n}_UUID", f"cn{n}", inventories=_COMPUTE | _DISK) for n in ("1", "2", "3"))
)

#            cn1 (A)                    cn2 (A, B)              ss1 (A), ss2 (C): DISK_GB, sharing
#          /     \                    /     \
#   numa1_1 (C)  numa1_2         numa2_1   numa2_2
NUMA_AGGREGATES: Final = FixtureWorld(
    providers=(
        Provider("CN1_UUID", "cn1", aggregates=("AGGA_UUID",)),
        Provider("CN2_UUID", "cn2", aggregates=("AGGA_UUID", "AGGB_UUID")),
        Provider("SS1_UUID", "ss1", inventories=_DISK, traits=(SHARES,), aggregates=("AGGA_UUID",)),
        Provider("SS2_UUID", "ss2", inventories=_DISK, traits=(SHARES,), aggregates=("AGGC_UUID",)),
        Provider(
            "NUMA1_1_UUID",
            "numa1_1",
            parent="CN1_UUID",
            inventories=_of(VCPU=24),
            aggregates=("AGGC_UUID",),
        ),
        Provider("NUMA1_2_UUID", "numa1_2", parent="CN1_UUID", inventories=_of(VCPU=24)),
        Provider("NUMA2_1_UUID", "numa2_1", parent="CN2_UUID", inventories=_of(VCPU=24)),
        Provider("NUMA2_2_UUID", "numa2_2", parent="CN2_UUID", inventories=_of(VCPU=24)),
    )
)


def _ports(number: str, *amounts: int) -> tuple[Provider, ...]:
    """A network card of cn2; its ports alternate between the two physical networks."""
    return (
        Provider(f"NIC{number}_UUID", f"nic{number}", parent="CN2_UUID", traits=("CUSTOM_HW_NIC_ROOT",)),
        *(
            Provider(
                f"PF{number}_{port}_UUID",
                f"pf{number}_{port}",
                parent=f"NIC{number}_UUID",
                inventories=_of(CUSTOM_VF=amount),
                traits=(f"CUSTOM_PHYSNET{1 if port % 2 else 2}",),
            )
            for port, amount in enumerate(amounts, start=1)
        ),
    )


def _bandwidth(variable: str, name: str, agent: str, network: str, vnic_type: str) -> Provider:
    return Provider(
        variable,
        name,
        parent=agent,
        inventories=_of(NET_BW_EGR_KILOBIT_PER_SEC=10_000),
        traits=(network, vnic_type),
    )


# cn1 (multi-attach, aggregate A)                   cn2 (FOO, aggregate A)                ss1 (sharing, A)
#  |- numa0 (NUMA root; 2 of its 4 VCPU used)         VCPU, MEMORY_MB, DISK_GB              DISK_GB
#  |   |- fpga0                                      |- nic1
#  |   '- pgpu0                                      |   |- pf1_1 (net 1, 4 VFs)
#  |- numa1 (NUMA root, FOO)                         |   '- pf1_2 (net 2, 4 VFs)
#  |   |- fpga1_0                                    |- nic2
#  |   '- fpga1_1                                    |   |- pf2_1, pf2_3 (net 1, 2 VFs each)
#  |- sriov_agent (direct)                           |   '- pf2_2, pf2_4 (net 2, 2 VFs each)
#  |   |- esn1 (net 1, bandwidth)                    '- nic3
#  |   '- esn2 (net 2, bandwidth)                        '- pf3_1 (net 1, 8 VFs)
#  '- ovs_agent (normal)
#      '- br_int (net 0, bandwidth)
NUMA_NETWORK: Final = FixtureWorld(
    providers=(
        Provider("CN1_UUID", "cn1", traits=("COMPUTE_VOLUME_MULTI_ATTACH",), aggregates=("AGGA_UUID",)),
        Provider(
            "NUMA0_UUID",
            "numa0",
            parent="CN1_UUID",
            inventories=_of(VCPU=4, MEMORY_MB=2048),
            traits=("HW_NUMA_ROOT",),
        ),
        Provider("FPGA0_UUID", "fpga0", parent="NUMA0_UUID", inventories=_of(FPGA=1)),
        Provider("PGPU0_UUID", "pgpu0", parent="NUMA0_UUID", inventories=_of(VGPU=8)),
        Provider(
            "NUMA1_UUID",
            "numa1",
            parent="CN1_UUID",
            inventories=_of(VCPU=4, MEMORY_MB=2048),
            traits=("HW_NUMA_ROOT", "CUSTOM_FOO"),
        ),
        Provider("FPGA1_0_UUID", "fpga1_0", parent="NUMA1_UUID", inventories=_of(FPGA=1)),
        Provider("FPGA1_1_UUID", "fpga1_1", parent="NUMA1_UUID", inventories=_of(FPGA=1)),
        Provider("SRIOV_AGENT_UUID", "sriov_agent", parent="CN1_UUID", traits=("CUSTOM_VNIC_TYPE_DIRECT",)),
        _bandwidth("ESN1_UUID", "esn1", "SRIOV_AGENT_UUID", "CUSTOM_PHYSNET1", "CUSTOM_VNIC_TYPE_DIRECT"),
        _bandwidth("ESN2_UUID", "esn2", "SRIOV_AGENT_UUID", "CUSTOM_PHYSNET2", "CUSTOM_VNIC_TYPE_DIRECT"),
        Provider("OVS_AGENT_UUID", "ovs_agent", parent="CN1_UUID", traits=("CUSTOM_VNIC_TYPE_NORMAL",)),
        _bandwidth("BR_INT_UUID", "br_int", "OVS_AGENT_UUID", "CUSTOM_PHYSNET0", "CUSTOM_VNIC_TYPE_NORMAL"),
        Provider(
            "CN2_UUID",
            "cn2",
            inventories=_of(VCPU=8, MEMORY_MB=2048) | _DISK,
            traits=("CUSTOM_FOO",),
            aggregates=("AGGA_UUID",),
        ),
        *_ports("1", 4, 4),
        *_ports("2", 2, 2, 2, 2),
        *_ports("3", 8),
        Provider("SS1_UUID", "ss1", inventories=_DISK, traits=(SHARES,), aggregates=("AGGA_UUID",)),
    ),
    allocations=(Allocation("NUMA0_CONSUMER", "PROJECT_ID", "USER_ID", "NUMA0_UUID", {"VCPU": 2}),),
)

# The same below one root, with two providers without inventory between it and the hosts.
DEEP_NUMA_NETWORK: Final = FixtureWorld(
    providers=(
        Provider("TOP_UUID", "top"),
        Provider("UPPER_UUID", "upper", parent="TOP_UUID"),
        Provider("LOWER_UUID", "lower", parent="UPPER_UUID"),
        *(
            replace(provider, parent="LOWER_UUID") if provider.name in ("cn1", "cn2") else provider
            for provider in NUMA_NETWORK.providers
        ),
    ),
    allocations=NUMA_NETWORK.allocations,
)


def _openstack_host(name: str, **bridges: tuple[str, int]) -> tuple[Provider, ...]:
    """A host with an Open vSwitch agent; each bridge has a segment and bandwidth in both directions."""
    agent = f"{name}:ovs_agent"
    return (
        Provider(name, name, inventories=_of(VCPU=8, MEMORY_MB=4096, DISK_GB=500)),
        Provider(
            agent,
            agent,
            parent=name,
            inventories=_of(NET_PACKET_RATE_KILOPACKET_PER_SEC=1000),
            traits=("CUSTOM_VNIC_TYPE_NORMAL",),
        ),
        *(
            Provider(
                f"{name}:{bridge}",
                f"{name}:{bridge}",
                parent=agent,
                inventories=_of(NET_BW_EGR_KILOBIT_PER_SEC=kilobits, NET_BW_IGR_KILOBIT_PER_SEC=kilobits),
                traits=("CUSTOM_VNIC_TYPE_NORMAL", segment),
            )
            for bridge, (segment, kilobits) in bridges.items()
        ),
    )


# One network has one segment (other), one has two (S1 and S2). compute3 has both networks on narrower
# bridges.
MULTI_SEGMENT_NETWORK: Final = FixtureWorld(
    providers=(
        *_openstack_host("compute0", br_ex=("CUSTOM_PHYSNET_OTHER", 5000)),
        *_openstack_host("compute1", br_ex=("CUSTOM_PHYSNET_MSN_S1", 5000)),
        *_openstack_host("compute2", br_ex=("CUSTOM_PHYSNET_MSN_S2", 5000)),
        *_openstack_host(
            "compute3", br_ex=("CUSTOM_PHYSNET_MSN_S1", 1000), br_ex2=("CUSTOM_PHYSNET_MSN_S2", 1000)
        ),
    )
)

# aggregate A:  cn_left  cn_middle            shr_disk_1 (SSD)  shr_disk_2
# aggregate B:           cn_middle  cn_right                    shr_disk_2
# aggregate C:                      cn_right                                shr_net
GRANULAR: Final = FixtureWorld(
    providers=(
        Provider(
            "CN_LEFT",
            "cn_left",
            inventories=_of(
                VCPU=8, MEMORY_MB=4096, DISK_GB=500, VGPU=8, SRIOV_NET_VF=8, CUSTOM_NET_MBPS=4000
            ),
            traits=("HW_CPU_X86_AVX", "HW_GPU_API_DXVA", "CUSTOM_FOO"),
            aggregates=("AGGA",),
        ),
        Provider(
            "CN_MIDDLE",
            "cn_middle",
            inventories=_of(VCPU=8, MEMORY_MB=4096),
            traits=("HW_CPU_X86_AVX", "HW_CPU_X86_SSE", "HW_NIC_ACCEL_TLS"),
            aggregates=("AGGA", "AGGB"),
        ),
        Provider(
            "CN_RIGHT",
            "cn_right",
            inventories={**_of(VCPU=8, MEMORY_MB=4096, DISK_GB=500), "VGPU": {"total": 8, "max_unit": 2}},
            traits=("HW_CPU_X86_MMX", "HW_GPU_API_DXVA", "CUSTOM_DISK_SSD"),
            aggregates=("AGGB", "AGGC"),
        ),
        Provider(
            "SHR_DISK_1",
            "shr_disk_1",
            inventories=_of(DISK_GB=1000),
            traits=(SHARES, "CUSTOM_DISK_SSD"),
            aggregates=("AGGA",),
        ),
        Provider(
            "SHR_DISK_2",
            "shr_disk_2",
            inventories=_of(DISK_GB=1000),
            traits=(SHARES,),
            aggregates=("AGGA", "AGGB"),
        ),
        Provider(
            "SHR_NET",
            "shr_net",
            inventories=_of(SRIOV_NET_VF=16, CUSTOM_NET_MBPS=40_000),
            traits=(SHARES,),
            aggregates=("AGGC",),
        ),
    )
)
