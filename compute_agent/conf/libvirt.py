"""Section ``[libvirt]``: the address of libvirtd on this host."""

from typing import Any, Final

from oslo_config import cfg

LIBVIRT_OPTS: Final = [
    cfg.StrOpt("uri", default="qemu:///system", help="Address of libvirtd, which has to run on this host."),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of section ``[libvirt]`` with ``conf``."""
    conf.register_opts(LIBVIRT_OPTS, group="libvirt")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file and for the detection of unknown options."""
    return [("libvirt", LIBVIRT_OPTS)]
