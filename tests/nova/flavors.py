"""Random flavors and images: most of them are realistic, some have invalid values."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

Case = dict[str, Any]

WRONG: Final = 0.2
"""Share of the cases with an inserted value that is probably wrong."""

_FLAGS: Final = ("true", "True", "1", "yes", "on", "false", "False", "0", "no", "off")
_ODD: Final = (
    "",
    " ",
    "maybe",
    "-1",
    "0",
    "1.5",
    "²",
    "99999999999999999999",
    "^",
    "0-",
    "a-b",
    "3-1",
    "Ü",
    "0x4",
)
_BUSES: Final = ("fdc", "ide", "sata", "scsi", "usb", "virtio", "xen")
_ARCHITECTURES: Final = ("x86_64", "aarch64", "i686", "i386", "amd64", "ppc64le", "s390x", "sparc", "AArch64")
_TRAITS: Final = (
    *(
        "HW_CPU_X86_AVX2",
        "HW_CPU_X86_VMX",
        "STORAGE_DISK_SSD",
        "COMPUTE_NODE",
        "CUSTOM_GOLD",
        "CUSTOM_RACK_7",
    ),
    *("HW_GPU_API_VULKAN", "COMPUTE_TRUSTED_CERTS", "HW_NUMA_ROOT"),
)
_CLASSES: Final = (
    *(
        "VGPU",
        "CUSTOM_LLC",
        "CUSTOM_FPGA",
        "SRIOV_NET_VF",
        "PCI_DEVICE",
        "NUMA_SOCKET",
        "IPV4_ADDRESS",
        "DISK_GB",
    ),
    *("MEMORY_MB", "CUSTOM_MAGIC"),
)


def cases(count: int, seed: int) -> list[Case]:
    """Generate this number of cases; equal seeds give equal cases."""
    rng = random.Random(seed)
    return [_case(rng) for _ in range(count)]


_ALIASES: Final = (
    {"name": "gpu", "resource_class": "gpu-a100", "traits": "HW_GPU_API_VULKAN,gold,CUSTOM_RUST"},
    {"name": "nic", "vendor_id": "8086", "product_id": "154d", "device_type": "type-VF"},
    {"name": "vgpu ", "resource_class": "VGPU", "traits": "", "numa_policy": "required"},
)
_DEVICES: Final = (
    "gpu:1",
    "gpu:2",
    "nic:1",
    "nic:1, vgpu:2",
    "gpu:1,nic:0",
    "gpu:-1",
    "gpu",
    "none:1",
    "gpu:a",
    "",
)


class _Maker:
    """Builds one case step by step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.vcpus = rng.choice((1, 2, 2, 3, 4, 4, 4, 6, 8, 8, 16, 64))
        self.ram = rng.choice((0, 512, 1000, 1024, 2048, 4096, 8192, 8192, 65536))
        self.specs: dict[str, str] = {}
        self.aliases: Sequence[dict[str, str]] = ()
        self.properties: dict[str, str] = {}

    def likely(self, chance: float) -> bool:
        return self.rng.random() < chance

    def both(self, name: str, values: Sequence[str], prefix: str = "hw") -> None:
        """Set a value in the flavor or the image, or in both objects; two values mostly agree."""
        value = self.rng.choice(values)
        who = self.rng.choice("ffiib")
        if who in "fb":
            self.specs[f"{prefix}:{name}"] = value
        if who in "ib":
            self.properties[f"{prefix}_{name}"] = value if self.likely(0.8) else self.rng.choice(values)

    def cpus(self, most: int) -> str:
        """Return a list of CPUs, mostly of existing ones."""
        parts = []
        for _ in range(self.rng.randrange(1, 4)):
            low = self.rng.randrange(most + self.likely(0.05))
            high = min(low + self.rng.randrange(3), most)
            text = (
                str(low) if self.likely(0.5) else f"{low}-{high if self.likely(0.1) else min(high, most - 1)}"
            )
            parts.append("^" * self.likely(0.3) + text)
        return self.rng.choice((",", ", ")).join(parts)


def _pinning(make: _Maker) -> None:
    policy = make.rng.choice(("dedicated", "dedicated", "mixed", "shared"))
    make.both("cpu_policy", (policy,))
    if make.likely(0.1):
        make.properties["hw_cpu_policy"] = make.rng.choice(("dedicated", "mixed", "shared"))
    if policy == "mixed" and make.likely(0.9):
        if make.likely(0.7):
            make.specs["hw:cpu_dedicated_mask"] = make.cpus(make.vcpus)
        else:
            _realtime(make)
    if policy == "dedicated" and make.likely(0.2):
        _realtime(make)
    if make.likely(0.4) and (policy != "shared" or make.likely(0.1)):
        make.both("cpu_thread_policy", ("prefer", "isolate", "require"))
    if make.likely(0.3) and (policy != "shared" or make.likely(0.1)):
        make.specs["hw:emulator_threads_policy"] = make.rng.choice(("isolate", "share"))


def _realtime(make: _Maker) -> None:
    make.specs["hw:cpu_realtime"] = make.rng.choice(("yes", "true", "no"))
    if make.likely(0.9):
        make.both("cpu_realtime_mask", (make.cpus(make.vcpus), f"^{make.rng.randrange(make.vcpus)}"))


def _amounts_of_cpus(make: _Maker) -> None:
    name = make.rng.choice(("VCPU", "PCPU", "PCPU"))
    amount = make.vcpus + make.rng.choice((0, 0, 0, 1))
    make.specs[f"resources{make.rng.choice(('', '', '1', '02', '_A'))}:{name}"] = str(amount)
    if make.likely(0.2):
        make.specs["hw:emulator_threads_policy"] = "isolate"
    if make.likely(0.2):
        make.specs["trait:HW_CPU_HYPERTHREADING"] = make.rng.choice(("required", "forbidden"))


def _numa(make: _Maker) -> None:
    nodes = make.rng.choice((1, 2, 2, 2, 4))
    if make.likely(0.8):
        make.both("numa_nodes", (str(nodes),))
    if make.likely(0.4):
        cpus: list[list[str]] = [[] for _ in range(nodes)]
        for cpu in range(make.vcpus + make.likely(0.05)):
            for _ in range(make.rng.choices((1, 0, 2), (100, 1, 1))[0]):
                cpus[make.rng.randrange(nodes)].append(str(cpu))
        memory = [make.ram // nodes] * nodes
        memory[0] += make.ram - sum(memory)
        into, form = make.rng.choice(((make.specs, "hw:numa_{}.{}"), (make.properties, "hw_numa_{}.{}")))
        for node in range(nodes - make.likely(0.05)):
            into[form.format("cpus", node)] = ",".join(cpus[node])
            if make.likely(0.98):
                into[form.format("mem", node)] = str(memory[node] + make.likely(0.02))


def _pages(make: _Maker) -> None:
    sizes = ("any", "large", "small", "2048", "1048576", "2MB", "1GB", "4KiB", "2MiB", "0")
    make.specs["hw:mem_page_size"] = make.rng.choice(sizes)
    if make.likely(0.2):
        make.properties["hw_mem_page_size"] = make.rng.choice(sizes)
    if make.likely(0.3):
        make.both("locked_memory", _FLAGS)


def _encryption(make: _Maker) -> None:
    make.both("mem_encryption", ("true", "true", "yes", "false"))
    make.properties["hw_firmware_type"] = "uefi" if make.likely(0.9) else "bios"
    if make.likely(0.5):
        make.properties["hw_machine_type"] = make.rng.choice(("q35", "pc-q35-8.2", "pc"))
    if make.likely(0.5):
        make.both("mem_encryption_model", ("amd-sev", "amd-sev-es", "amd-sev-snp", "intel-tdx"))
        if make.likely(0.7):
            make.properties["hw_firmware_stateless"] = "true"
        if make.likely(0.7):
            make.properties["hw_video_model"] = "none"
    if make.likely(0.2):
        make.both("locked_memory", _FLAGS)


def _tpm(make: _Maker) -> None:
    make.both("tpm_version", ("1.2", "2.0", "2.0"))
    if make.likely(0.6):
        make.both("tpm_model", ("tpm-tis", "tpm-crb"))
    if make.likely(0.4):
        make.specs["hw:tpm_secret_security"] = make.rng.choice(("user", "host", "deployment"))


def _firmware(make: _Maker) -> None:
    make.both("secure_boot", ("required", "disabled", "optional"), "os")
    if make.likely(0.5):
        make.properties["hw_firmware_type"] = make.rng.choice(("uefi", "bios"))
        make.properties["hw_firmware_stateless"] = make.rng.choice(_FLAGS)


def _ephemeral(make: _Maker) -> None:
    make.both("ephemeral_encryption", _FLAGS)
    if make.likely(0.6):
        make.both("ephemeral_encryption_format", ("luks", "luksv2", "plain"))


def _devices(make: _Maker) -> None:
    choices: dict[str, Sequence[str]] = {
        "hw_cdrom_bus": _BUSES,
        "hw_disk_bus": _BUSES,
        "hw_video_model": ("cirrus", "qxl", "vga", "virtio", "bochs", "none"),
        "hw_vif_model": ("virtio", "e1000", "spapr-vlan", "ne2k_pci", "igb", "vmxnet3"),
        "hw_architecture": _ARCHITECTURES,
        "hw_emulation_architecture": _ARCHITECTURES,
        "hw_viommu_model": ("intel", "smmuv3", "virtio", "auto"),
        "architecture": _ARCHITECTURES,
        "vmware_adaptertype": ("ide", "lsiLogic", "lsiLogicsas", "paraVirtual", "busLogic"),
        "vm_mode": ("hvm", "xen", "pv", "HVM"),
        "hypervisor_type": ("kvm", "qemu", "QEMU", "xapi"),
        "os_type": ("linux", "Windows"),
        "hw_watchdog_action": ("reset", "none", "disabled"),
        "hw_scsi_model": ("virtio-scsi", "lsilogic"),
        "img_config_drive": ("mandatory", "optional"),
        "os_distro": ("debian", "anything"),
    }
    for name in make.rng.sample(list(choices), make.rng.randrange(1, 4)):
        make.properties[name] = make.rng.choice(choices[name])


def _sound_and_queues(make: _Maker) -> None:
    if make.likely(0.4):
        make.both("sound_model", ("virtio", "ich9", "sb16", "usb"))
    if make.likely(0.4):
        make.both("virtio_packed_ring", _FLAGS)
    if make.likely(0.4):
        make.both("vif_multiqueue_enabled", _FLAGS)
    if make.likely(0.3):
        make.both("pmu", _FLAGS)


def _topology(make: _Maker) -> None:
    for part in ("sockets", "cores", "threads"):
        if make.likely(0.5):
            make.both(f"cpu_{part}", ("1", "2", "4"))
        if make.likely(0.4):
            make.both(f"cpu_max_{part}", ("2", "4", "8"))
    if make.likely(0.3):
        make.both("serial_port_count", ("1", "2", "4"))


def _others(make: _Maker) -> None:
    if make.likely(0.4):
        make.both("pci_numa_affinity_policy", ("required", "preferred", "legacy", "socket", "socket"))
    if make.likely(0.4):
        make.both("maxphysaddr_mode", ("passthrough", "emulate"))
    if make.likely(0.3):
        make.specs["hw:pmem"] = make.rng.choice(("2GB", "2GB, 6GB", "small,small,LARGE", " , ", "a-b.c"))
    if make.likely(0.2):
        make.specs["hw:watchdog_action"] = make.rng.choice(("reset", "poweroff"))
    if make.likely(0.2):
        make.specs["quota:cpu_shares"] = "2048"
    if make.likely(0.1):
        make.specs["accel:device_profile"] = "gpu"


def _pci(make: _Maker) -> None:
    make.specs["pci_passthrough:alias"] = make.rng.choice(_DEVICES)
    make.aliases = _ALIASES if make.likely(0.9) else ()


def _amounts(make: _Maker) -> None:
    suffixes = make.rng.sample(("", "", "1", "2", "_GPU", "_NET-1"), make.rng.randrange(1, 4))
    for suffix in suffixes:
        for name in make.rng.sample(_CLASSES, make.rng.randrange(1, 3)):
            make.specs[f"resources{suffix}:{name}"] = str(make.rng.choice((0, 1, 1, 2, 4, 1024)))
        if make.likely(0.4):
            _traits(make, suffix)
    if make.likely(0.8):
        make.specs["group_policy"] = make.rng.choice(("none", "isolate"))


def _traits(make: _Maker, suffix: str = "") -> None:
    for name in make.rng.sample(_TRAITS, make.rng.randrange(1, 3)):
        make.specs[f"trait{suffix}:{name}"] = make.rng.choice(("required", "required", "forbidden"))


def _image_traits(make: _Maker) -> None:
    for name in make.rng.sample(_TRAITS, make.rng.randrange(1, 3)):
        make.properties[f"trait:{name}"] = make.rng.choice(("required", "required", "required", "forbidden"))


_PARTS: Final[Sequence[tuple[float, Callable[[_Maker], None]]]] = (
    (0.35, _pinning),
    (0.06, _amounts_of_cpus),
    (0.2, _numa),
    (0.15, _pages),
    (0.1, _encryption),
    (0.15, _tpm),
    (0.15, _firmware),
    (0.12, _ephemeral),
    (0.3, _devices),
    (0.2, _sound_and_queues),
    (0.15, _topology),
    (0.15, _others),
    (0.15, _pci),
    (0.25, _amounts),
    (0.2, _traits),
    (0.15, _image_traits),
)

_SPECS: Final = (
    *("hw:cpu_policy", "hw:cpu_thread_policy", "hw:emulator_threads_policy", "hw:cpu_dedicated_mask"),
    *("hw:cpu_realtime", "hw:cpu_realtime_mask", "hw:numa_nodes", "hw:numa_cpus.0", "hw:numa_mem.0"),
    *(
        "hw:mem_page_size",
        "hw:locked_memory",
        "hw:mem_encryption",
        "hw:mem_encryption_model",
        "hw:tpm_version",
    ),
    *("hw:tpm_model", "hw:tpm_secret_security", "os:secure_boot", "hw:maxphysaddr_mode", "hw:sound_model"),
    *(
        "hw:pci_numa_affinity_policy",
        "hw:ephemeral_encryption_format",
        "hw:serial_port_count",
        "hw:cpu_cores",
    ),
    *("hw:cpu_max_threads", "hw:pmu", "group_policy", "resources:VCPU", "resources:VGPU", "resources1:PCPU"),
    *(
        "resources:VCPU_X",
        "resources:no_class",
        "trait:HW_CPU_HYPERTHREADING",
        "trait1:CUSTOM_GOLD",
        "resources",
    ),
    *("trait:CUSTOM_GOLD", "resources!:VGPU", "hw:pmem"),
)
_PROPERTIES: Final = (
    *("hw_cpu_policy", "hw_cpu_thread_policy", "hw_cpu_realtime_mask", "hw_numa_nodes", "hw_numa_cpus.0"),
    *(
        "hw_numa_mem.0",
        "hw_mem_page_size",
        "hw_locked_memory",
        "hw_mem_encryption",
        "hw_mem_encryption_model",
    ),
    *(
        "hw_tpm_version",
        "hw_tpm_model",
        "os_secure_boot",
        "hw_maxphysaddr_mode",
        "hw_sound_model",
        "hw_disk_bus",
    ),
    *(
        "hw_video_model",
        "hw_vif_model",
        "hw_architecture",
        "architecture",
        "hw_serial_port_count",
        "hw_cpu_cores",
    ),
    *("hw_cpu_max_sockets", "hw_firmware_type", "hw_rescue_bus", "img_config_drive", "os_type", "vm_mode"),
    *("hw_video_ram", "hypervisor_type", "trait:HW_CPU_HYPERTHREADING", "hw_ephemeral_encryption_format"),
)


def _make_wrong(make: _Maker) -> None:
    """Set an odd value, or the value of another name, under a known name."""
    if make.likely(0.6):
        make.specs[make.rng.choice(_SPECS)] = _odd(make)
    else:
        make.properties[make.rng.choice(_PROPERTIES)] = _odd(make)


def _odd(make: _Maker) -> str:
    values = [*make.specs.values(), *make.properties.values()]
    return make.rng.choice(values) if values and make.likely(0.3) else make.rng.choice(_ODD)


def _case(rng: random.Random) -> Case:
    make = _Maker(rng)
    for chance, part in _PARTS:
        if make.likely(chance * 0.7):
            part(make)
    if make.likely(WRONG):
        _make_wrong(make)
    image: dict[str, Any] = {
        "disk_format": rng.choice(("qcow2", "raw", "vmdk", "iso", "ploop", "nothing")),
        "properties": make.properties,
    }
    if make.likely(0.3):
        image |= {
            "min_ram": rng.choice((0, 512)),
            "min_disk": rng.choice((0, 1, 10)),
            "size": rng.choice((0, 1 << 31)),
        }
    flavor = {
        "vcpus": make.vcpus,
        "ram": make.ram,
        "disk": rng.choice((0, 1, 10, 20)),
        "ephemeral": rng.choice((0, 0, 5)),
        "swap": rng.choice((0, 0, 1, 1023, 1024, 1025, 4096)),
        "extra_specs": make.specs,
        "image": image,
        "is_volume_backed": make.likely(0.3),
    }
    names = ("query_placement_for_image_type_support", "image_metadata_prefilter", "require_owner_nova")
    rules: dict[str, Any] = {name: make.likely(0.4) for name in names}
    return {"flavor": flavor, "rules": {**rules, "pci_alias": list(make.aliases)} if make.aliases else rules}
