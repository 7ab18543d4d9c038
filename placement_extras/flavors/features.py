"""Finds the traits that a guest needs from its host, and from the providers of its resources."""

from collections.abc import Iterator, Mapping
from typing import Final

import os_traits

from placement_extras.flavors.flavor import TranslationRules, refusal_error
from placement_extras.flavors.guest import FlavorGuest
from placement_extras.flavors.memory import has_stateless_firmware

# for each image property, the first part of the names of its traits. The value of the property is the rest of
# the name, as in Nova's image_metadata_prefilter.
_PREFIXES: Final[Mapping[str, str]] = {
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL",
    "hw_architecture": "HW_ARCH",
    "hw_emulation_architecture": "COMPUTE_ARCH",
    "hw_viommu_model": "COMPUTE_VIOMMU",
}
_TPM_VERSIONS: Final[Mapping[str, str]] = {
    "1.2": "COMPUTE_SECURITY_TPM_1_2",
    "2.0": "COMPUTE_SECURITY_TPM_2_0",
}
_TPM_MODELS: Final[Mapping[str, str]] = {
    "tpm-tis": "COMPUTE_SECURITY_TPM_TIS",
    "tpm-crb": "COMPUTE_SECURITY_TPM_CRB",
}
_ADDRESS_SPACES: Final[Mapping[str, str]] = {
    "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
    "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
}


def provider_traits(guest: FlavorGuest) -> Iterator[str]:
    """Yield the traits that the group without a suffix requires."""
    yield from guest.image.traits
    if tpm := _tpm_traits(guest):
        yield from tpm
    if guest.agreed_choice("pci_numa_affinity_policy") == "socket":
        yield "COMPUTE_SOCKET_PCI_NUMA_AFFINITY"
    if guest.agreed_choice("secure_boot", "os") == "required":
        yield "COMPUTE_SECURITY_UEFI_SECURE_BOOT"
    if mode := guest.agreed_choice("maxphysaddr_mode"):
        yield _ADDRESS_SPACES[mode]
    if has_stateless_firmware(guest):
        yield "COMPUTE_SECURITY_STATELESS_FIRMWARE"


def root_traits(guest: FlavorGuest, rules: TranslationRules) -> Iterator[str]:
    """Yield the traits that the request requires of the root provider, which is the host."""
    if rules.query_placement_for_image_type_support:
        yield from _image_type(guest)
    if rules.image_metadata_prefilter:
        yield from _device_traits(guest)
    if rules.require_owner_nova:
        yield "OWNER_NOVA"
    if guest.agreed_flag("virtio_packed_ring"):
        yield "COMPUTE_NET_VIRTIO_PACKED"
    if guest.agreed_flag("ephemeral_encryption"):
        yield "COMPUTE_EPHEMERAL_ENCRYPTION"
        if kind := guest.agreed_choice("ephemeral_encryption_format"):
            yield f"COMPUTE_EPHEMERAL_ENCRYPTION_{kind.upper()}"
    if guest.agreed_choice("sound_model") == "virtio":
        yield "COMPUTE_SOUND_MODEL_VIRTIO"
    if _tpm_traits(guest):
        yield _tpm_secrets(guest)


def _tpm_traits(guest: FlavorGuest) -> tuple[str, str] | None:
    version = guest.agreed_choice("tpm_version")
    if not version:
        return None
    model = guest.agreed_choice("tpm_model") or "tpm-tis"  # Nova's default
    if model == "tpm-crb" and version != "2.0":  # TPM 1.2 has no CRB interface
        raise refusal_error("hw:tpm_model=tpm-crb needs hw:tpm_version=2.0")
    return _TPM_VERSIONS[version], _TPM_MODELS[model]


def _tpm_secrets(guest: FlavorGuest) -> str:
    security = guest.specs.get("hw:tpm_secret_security") or "user"  # Nova's default without this extra spec
    if security not in ("user", "host", "deployment"):
        raise refusal_error(
            f"hw:tpm_secret_security cannot be {security!r}, only one of user, host, deployment"
        )
    return f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{security.upper()}"


def _image_type(guest: FlavorGuest) -> Iterator[str]:
    disk_format = guest.flavor.image.disk_format
    # a guest that boots from a volume needs no image on its host
    if disk_format and not guest.flavor.is_volume_backed:
        trait = f"COMPUTE_IMAGE_TYPE_{disk_format.upper()}"
        if hasattr(os_traits, trait):  # Nova asks for standard traits only
            yield trait


def _device_traits(guest: FlavorGuest) -> list[str]:
    """Return the traits for properties of the image. If one value has no trait, return none, as Nova does."""
    traits = [
        f"{prefix}_{guest.image.texts[name].replace('-', '_').upper()}"
        for name, prefix in _PREFIXES.items()
        if name in guest.image.texts
    ]
    return traits if all(hasattr(os_traits, trait) for trait in traits) else []
