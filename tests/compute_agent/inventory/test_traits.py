"""Tests of the traits of processors, with the names in os-traits."""

import os_traits
import pytest

from compute_agent.host.topology import HostTopology
from compute_agent.inventory import traits
from tests.compute_agent.inventory.machines import machine
from tests.environments import is_pinned

# the agent reports no trait that its os-traits does not have
NEWEST = pytest.mark.skipif(not is_pinned("os-traits"), reason="older versions of os-traits lack traits")

RENAMED = (
    "aes bmi1 fma gfni pclmulqdq pni rtm sev sev_es sev_snp sha_ni svm tdx_host_platform vaes virt_ssbd vmx"
    " vpclmulqdq ibpb ibrs md_clear pcid ssbd"
)
"""Flags with traits of another name."""


def host(flags: str, architecture: str = "x86_64", **fields: object) -> HostTopology:
    return machine(cores=2, cpu_flags=frozenset(flags.split()), architecture=architecture, **fields)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("mmx sse sse2 pni ssse3 sse4_1 sse4_2 sse4a", "MMX SSE SSE2 SSE3 SSSE3 SSE41 SSE42 SSE4A"),
        ("avx avx2 avx512f avx512bw avx512_vnni", "AVX AVX2 AVX512F AVX512BW AVX512VNNI"),
        ("avx512_vbmi2 avx512vbmi avx512_vpopcntdq", "AVX512VBMI2 AVX512VBMI AVX512VPOPCNTDQ"),
        ("vaes gfni vpclmulqdq", "AVX512VAES AVX512GFNI AVX512VPCLMULQDQ"),
        pytest.param("amx_tile amx_int8 amx_bf16", "AMXTILE AMXINT8 AMXBF16", marks=NEWEST),
        ("aes pclmulqdq sha_ni fma fma4 f16c", "AESNI CLMUL SHA FMA3 FMA4 F16C"),
        ("abm bmi1 bmi2 tbm xop 3dnow", "ABM BMI BMI2 TBM XOP 3DNOW"),
        ("rtm mpx sgx pdpe1gb stibp", "TSX MPX SGX PDPE1GB STIBP"),
        ("vmx", "VMX INTEL_VMX"),
        ("svm sev sev_es sev_snp virt_ssbd", "SVM AMD_SVM AMD_SEV AMD_SEV_ES AMD_SEV_SNP AMD_VIRT_SSBD"),
        ("fpu tsc lm hypervisor constant_tsc", ""),
    ],
)
def test_x86_flags_have_the_names_of_os_traits(flags: str, names: str) -> None:
    assert traits.cpu_traits(host(flags)) == {f"HW_CPU_X86_{name}" for name in names.split()}


@pytest.mark.parametrize(
    ("vendor", "names"),
    [
        ("GenuineIntel", "INTEL_SPEC_CTRL INTEL_SSBD INTEL_PCID INTEL_MD_CLEAR"),
        ("AuthenticAMD", "AMD_IBPB AMD_SSBD"),
        (None, ""),
    ],
)
def test_mitigations_are_told_by_vendor(vendor: str | None, names: str) -> None:
    found = traits.cpu_traits(host("ibrs ibpb ssbd pcid md_clear", vendor=vendor))
    assert found == {f"HW_CPU_X86_{name}" for name in names.split()}


def test_arm_and_power_have_names_of_their_own() -> None:
    arm = host("fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics sve unheard", architecture="aarch64")
    assert traits.cpu_traits(arm) == {
        f"HW_CPU_AARCH64_{name}"
        for name in ["FP", "ASIMD", "EVTSTRM", "AES", "PMULL", "SHA1", "SHA2", "CRC32", "ATOMICS", "SVE"]
    }
    power = host("", architecture="ppc64le", model_name="POWER9, altivec supported")
    assert traits.cpu_traits(power) == {"HW_CPU_PPC64LE_POWER9"}
    assert traits.cpu_traits(host("sse aes", architecture="riscv64")) == frozenset()


@NEWEST
def test_every_trait_of_the_tables_exists_in_os_traits() -> None:
    for flag in RENAMED.split():
        named = {*traits.cpu_traits(host(flag, vendor="GenuineIntel"))}
        named |= traits.cpu_traits(host(flag, vendor="AuthenticAMD"))
        assert named, flag
        assert os_traits.check_traits(named) == (named, set())


def test_hyperthreading_needs_a_core_with_two_online_threads() -> None:
    assert "HW_CPU_HYPERTHREADING" in traits.root_traits(machine(cores=2, threads=2))
    assert "HW_CPU_HYPERTHREADING" in traits.root_traits(machine(cores=2, threads=2, offline=frozenset({1})))
    assert "HW_CPU_HYPERTHREADING" not in traits.root_traits(
        machine(cores=2, threads=2, offline=frozenset({1, 3}))
    )
    assert traits.root_traits(machine(cores=2)) == {"COMPUTE_NODE"}
