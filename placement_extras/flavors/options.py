"""The options in ``[flavors]`` for the translation of flavors, with the names of Nova's options."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "flavors",
    title="Flavors",
    help="How the service translates flavors in requests to /ext/v1 to resources and traits. Set the same"
    " values as in nova.conf.",
)

_ID: Final = re.compile("[0-9a-fA-F]{4}")
_POLICIES: Final = ("required", "legacy", "preferred", "socket")
_FIELDS: Final = (
    *("name", "resource_class", "traits", "vendor_id", "product_id"),
    *("device_type", "numa_policy", "live_migratable", "capability_type"),
)
"""The fields of an alias in Nova. Some of these fields have no effect on a request."""


class PciAliasType(types.ConfigType):
    """The type of a PCI alias: a JSON object as in Nova's ``[pci] alias``."""

    def __init__(self) -> None:
        super().__init__(type_name="PCI alias")

    def __call__(self, value: str) -> Mapping[str, str]:
        """Parse an alias.

        :raises ValueError: the text is not a JSON object, or has neither a resource class nor the ids of a
            device.
        """
        said = json.loads(value)
        if not isinstance(said, dict) or not all(isinstance(each, str) for each in said.values()):
            raise ValueError("the alias is not a JSON object with texts")
        if unknown := said.keys() - set(_FIELDS):
            raise ValueError(
                f"the alias has unknown fields: {', '.join(sorted(unknown))}; known are {', '.join(_FIELDS)}"
            )
        if not said.get("name", "").strip():
            raise ValueError("the alias has no name")
        ids = [said.get(name, "") for name in ("vendor_id", "product_id")]
        if not said.get("resource_class") and not all(map(_ID.fullmatch, ids)):
            raise ValueError(
                "the alias needs resource_class, or vendor_id and product_id with four hex digits each"
            )
        if said.get("numa_policy", "legacy") not in _POLICIES:
            raise ValueError(f"numa_policy of the alias is none of {', '.join(_POLICIES)}")
        return said

    def __repr__(self) -> str:
        return "PciAlias"

    # all objects of this class are equal. If an option is registered twice, oslo.config compares its two
    # types.
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
Whether hosts need the trait for the disk_format of the image, such as
COMPUTE_IMAGE_TYPE_QCOW2, if this trait exists. Nova has the same option in
[scheduler].

""",
    ),
    cfg.BoolOpt(
        "image_metadata_prefilter",
        default=False,
        help="""
Whether hosts need the traits for the buses, device models and architecture
in the image's properties, such as COMPUTE_STORAGE_BUS_VIRTIO and
HW_ARCH_X86_64. Nova has the same option in [scheduler].

""",
    ),
    cfg.BoolOpt(
        "require_owner_nova",
        default=False,
        help="""
Whether hosts and PCI devices need the trait OWNER_NOVA. Only hosts that
nova-compute reports have this trait. Set the option to true when all
nova-compute services of the cloud have version 34.0.0 or later. Nova needs
no such option: it knows the versions of all nova-compute services, and
requires the trait from then on. This service does not know these versions.

""",
    ),
    cfg.BoolOpt(
        "disable_fallback_pcpu_query",
        default=True,
        help="""
Whether a claim of a flavor with hw:cpu_policy=dedicated is refused if no
candidate has PCPU. If false, such a claim uses a candidate with VCPU. Nova
has the same option in [workarounds], with the default false. Nova checks the
chosen host afterwards, and refuses a host that does not pin guests. This
service has no such check of the host. So set the option to false only if all
hosts without PCPU pin guests as before Nova 20 (vcpu_pin_set).

""",
    ),
    cfg.BoolOpt(
        "numa_affinity",
        default=False,
        help="""
Request CPUs, memory and PCI devices of a guest from one NUMA node, with
same_subtree. The extra spec hw:pci_numa_affinity_policy, or numa_policy of
the PCI alias, decides whether a device must be at this node. Nova requests
these resources from the whole host, and checks NUMA nodes afterwards. Set
the option only if all hosts have providers of NUMA nodes, because hosts
without such providers are then no candidates. The option has no effect on
guests without a NUMA topology, and on guests with several NUMA nodes. The
option needs disable_fallback_pcpu_query = true.

""",
    ),
    cfg.BoolOpt(
        "huge_pages",
        default=False,
        help="""
If hw:mem_page_size of a flavor is a size of huge pages, request the class of
these pages, such as CUSTOM_HUGE_PAGES_1GB, instead of MEMORY_MB. Set the
option only if the agents of all hosts offer huge pages ([compute]
huge_pages). Nova always requests MEMORY_MB.

""",
    ),
    cfg.MultiOpt(
        "pci_alias",
        item_type=PciAliasType(),
        help="""
An alias of PCI devices. A flavor requests such devices with the extra spec
pci_passthrough:alias. The value is a JSON object as in Nova's [pci] alias.
Use the option if Nova has [filter_scheduler] pci_in_placement = true. Each
device becomes a separate group of the request, with the traits and the
resource class of the alias. The class of an alias without resource_class is
made from vendor_id and product_id. Repeat the option for each alias.

""",
    ),
]
