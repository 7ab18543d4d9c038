"""``[flavors]``: how flavors are translated, by the names that Nova's options for the same have."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "flavors",
    title="Flavors",
    help="How flavors in bodies of /ext/v1 are translated. Who runs Nova, too, says the same in nova.conf.",
)

_ID: Final = re.compile("[0-9a-fA-F]{4}")
_FIELDS: Final = (
    *("name", "resource_class", "traits", "vendor_id", "product_id"),
    *("device_type", "numa_policy", "live_migratable", "capability_type"),
)


class PciAliasType(types.ConfigType):
    """A JSON object as Nova's ``[pci] alias`` takes it, for devices that it has in Placement."""

    def __init__(self) -> None:
        super().__init__(type_name="PCI alias")

    def __call__(self, value: str) -> Mapping[str, str]:
        """The object.

        :raises ValueError: it is none, or nothing to ask Placement for.
        """
        said = json.loads(value)
        if not isinstance(said, dict) or not all(isinstance(each, str) for each in said.values()):
            raise ValueError("an alias is a JSON object of texts")
        if unknown := said.keys() - set(_FIELDS):
            raise ValueError(f"an alias has no {', '.join(sorted(unknown))}, only {', '.join(_FIELDS)}")
        if not said.get("name", "").strip():
            raise ValueError("an alias has a name")
        ids = [said.get(name, "") for name in ("vendor_id", "product_id")]
        if not said.get("resource_class") and not all(map(_ID.fullmatch, ids)):
            raise ValueError(
                "an alias has a resource_class, or a vendor_id and a product_id of four hex digits"
            )
        return said

    def __repr__(self) -> str:
        return "PciAlias"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PciAliasType)

    def __hash__(self) -> int:
        return hash(PciAliasType)

    def _formatter(self, value: Any) -> str:
        return json.dumps(value)


OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "query_placement_for_image_type_support",
        default=False,
        help="""
Whether a guest that boots from an image needs a host with the trait of the
image's disk_format (COMPUTE_IMAGE_TYPE_QCOW2 and the like), if there is one. Of
Nova's [scheduler].
""",
    ),
    cfg.BoolOpt(
        "image_metadata_prefilter",
        default=False,
        help="""
Whether a guest needs a host with the traits of what its image wants of buses,
models of devices and architectures (COMPUTE_STORAGE_BUS_VIRTIO, HW_ARCH_X86_64
and the like). Of Nova's [scheduler].
""",
    ),
    cfg.BoolOpt(
        "require_owner_nova",
        default=False,
        help="""
Whether a guest needs a host with the trait OWNER_NOVA. Nova 34.0.0 has no
option for this: it asks for the trait as soon as no nova-compute is older,
which this service cannot know. Hosts that nova-compute does not report lack it.
""",
    ),
    cfg.BoolOpt(
        "disable_fallback_pcpu_query",
        default=True,
        help="""
Whether a claim of a flavor with hw:cpu_policy=dedicated is refused where there
is no candidate with PCPU. If not, one with VCPU will do then. Of Nova's
[workarounds], where the default is false: Nova looks at the host afterwards,
and refuses one that does not pin. Nobody does that for a claim, so leave it
true unless all hosts without PCPU pin guests as before Nova 20 (vcpu_pin_set).
""",
    ),
    cfg.MultiOpt(
        "pci_alias",
        item_type=PciAliasType(),
        help="""
Aliases of PCI devices, which flavors name in pci_passthrough:alias: the
JSON objects of Nova's [pci] alias, of a Nova with [filter_scheduler]
pci_in_placement = true. Each device is a group of its own, with the resource
class (that of vendor_id and product_id, if none is given) and the traits of
the alias. May be given several times, once for each name.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[flavors]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
