"""Traits of a host: the flags of its processors under the names of os-traits, and the features of resctrl.

os-traits names most CPU traits after the kernel's flag, without underscores: ``avx512_vnni`` is
HW_CPU_X86_AVX512VNNI. The tables of this module contain the traits with other names. The flags are those of
arch/x86/include/asm/cpufeatures.h and Documentation/arch/arm64/elf_hwcaps.rst of the kernel.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import os_traits

from compute_agent.host.topology import HostTopology
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.guest_settings import IsolationLevel, MemoryType

NUMA_ROOT: Final[str] = os_traits.HW_NUMA_ROOT
RESCTRL_PREFIX: Final = "CUSTOM_RESCTRL_"
MEMORY_TIER_PREFIX: Final = "CUSTOM_MEMORY_TIER_"
WAY_SIZE_PREFIX: Final = "CUSTOM_LLC_WAY_"
CPU_PREFIX: Final = "CUSTOM_CPU_"

_NAMESPACES: Final = {
    "x86_64": "HW_CPU_X86_",
    "i686": "HW_CPU_X86_",
    "aarch64": "HW_CPU_AARCH64_",
    "ppc64le": "HW_CPU_PPC64LE_",
}

_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "aes": ("HW_CPU_X86_AESNI",),
    "bmi1": ("HW_CPU_X86_BMI",),
    "fma": ("HW_CPU_X86_FMA3",),
    "gfni": ("HW_CPU_X86_AVX512GFNI",),
    "pclmulqdq": ("HW_CPU_X86_CLMUL",),
    "pni": ("HW_CPU_X86_SSE3",),  # Prescott New Instructions: Linux's first name of SSE3
    "rtm": ("HW_CPU_X86_TSX",),
    "sev": ("HW_CPU_X86_AMD_SEV",),
    "sev_es": ("HW_CPU_X86_AMD_SEV_ES",),
    "sev_snp": ("HW_CPU_X86_AMD_SEV_SNP",),
    "sha_ni": ("HW_CPU_X86_SHA",),
    "svm": ("HW_CPU_X86_SVM", "HW_CPU_X86_AMD_SVM"),
    "tdx_host_platform": ("HW_CPU_X86_INTEL_TDX",),
    "vaes": ("HW_CPU_X86_AVX512VAES",),
    "virt_ssbd": ("HW_CPU_X86_AMD_VIRT_SSBD",),
    "vmx": ("HW_CPU_X86_VMX", "HW_CPU_X86_INTEL_VMX"),
    "vpclmulqdq": ("HW_CPU_X86_AVX512VPCLMULQDQ",),
}

_OF_VENDOR: Final[Mapping[str, Mapping[str, str]]] = {
    # For these features Linux has one flag, although vendors report the feature in different ways. os-traits
    # has a trait for each vendor.
    "GenuineIntel": {
        "ibrs": "HW_CPU_X86_INTEL_SPEC_CTRL",
        "md_clear": "HW_CPU_X86_INTEL_MD_CLEAR",
        "pcid": "HW_CPU_X86_INTEL_PCID",
        "ssbd": "HW_CPU_X86_INTEL_SSBD",
    },
    "AuthenticAMD": {
        "ibpb": "HW_CPU_X86_AMD_IBPB",
        "ssbd": "HW_CPU_X86_AMD_SSBD",
    },
}


def _plain_name(name: str) -> str:
    return name.replace("_", "").lower()


_BY_NAME: Final[Mapping[str, Mapping[str, str]]] = {
    namespace: {
        _plain_name(trait.removeprefix(namespace)): trait for trait in os_traits.get_traits(namespace)
    }
    for namespace in _NAMESPACES.values()
}


def cpu_traits(topology: HostTopology) -> frozenset[str]:
    """The traits for features that all online CPUs have, because a guest may run on any online CPU."""
    namespace = _NAMESPACES.get(topology.architecture)
    if namespace is None:
        return frozenset()
    by_name = _BY_NAME[namespace]
    found = {by_name[_plain_name(flag)] for flag in topology.cpu_flags if _plain_name(flag) in by_name}
    if namespace == "HW_CPU_X86_":
        of_vendor = _OF_VENDOR.get(topology.vendor or "", {})
        found.update(of_vendor[flag] for flag in topology.cpu_flags if flag in of_vendor)
        found.update(trait for flag in topology.cpu_flags for trait in _OTHER_NAMES.get(flag, ()))
    if namespace == "HW_CPU_PPC64LE_":  # POWER has no flags; the model names its generation.
        found.update(by_name[word] for word in _model_words(topology.model_name) if word in by_name)
    return frozenset(found)


def root_traits(topology: HostTopology, resctrl_features: frozenset[str] = frozenset()) -> frozenset[str]:
    """All traits of the root provider."""
    traits = {os_traits.COMPUTE_NODE} | cpu_traits(topology)
    if topology.is_hyperthreaded:
        traits.add(os_traits.HW_CPU_HYPERTHREADING)
    return frozenset(traits) | resctrl_traits(resctrl_features)


def resctrl_traits(features: frozenset[str]) -> frozenset[str]:
    """The traits for features of resctrl."""
    return frozenset(RESCTRL_PREFIX + feature for feature in features)


def memory_trait(memory_type: MemoryType) -> str:
    """The trait for the type of a NUMA node's memory, such as ``CUSTOM_MEMORY_TIER_HBM``."""
    return f"{MEMORY_TIER_PREFIX}{memory_type.upper()}"


def with_isolation(tree: ProviderTree, levels: Collection[IsolationLevel]) -> ProviderTree:
    """The tree with a trait for each isolation level, such as ``CUSTOM_CPU_QUIET``.

    The providers with an inventory of PCPU have these traits.
    """
    offered = frozenset(f"{CPU_PREFIX}{level.upper()}" for level in levels)
    nodes = tuple(
        replace(node, traits=node.traits | offered) if "PCPU" in node.inventories else node
        for node in tree.nodes
    )
    return replace(tree, nodes=nodes)


def way_size_trait(way_kib: int) -> str:
    """The trait for the size of a cache way in KiB, such as ``CUSTOM_LLC_WAY_1408KIB``."""
    return f"{WAY_SIZE_PREFIX}{way_kib}KIB"


def _model_words(text: str | None) -> list[str]:
    return re.findall(r"[a-z0-9]+", (text or "").lower())
