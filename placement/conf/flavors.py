"""``[flavors]``: how flavors are translated, by the names that Nova's options for the same have."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup(
    "flavors",
    title="Flavors",
    help="How flavors in bodies of /ext/v1 are translated. Who runs Nova, too, says the same in nova.conf.",
)

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
is no candidate with PCPU. If not, one with VCPU is looked for then. Of Nova's
[workarounds], where the default is false: Nova looks at the host afterwards,
and refuses one that does not pin. Nobody does that for a claim, so leave it
true unless all hosts without PCPU pin guests as before Nova 20 (vcpu_pin_set).
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[flavors]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
