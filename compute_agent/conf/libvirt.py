"""Section ``[libvirt]``: the libvirtd of this host."""

from typing import Any, Final

from oslo_config import cfg

LIBVIRT_OPTS: Final = [
    cfg.StrOpt("uri", default="qemu:///system", help="Address of libvirtd, which has to run on this host."),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the section known to ``conf``."""
    conf.register_opts(LIBVIRT_OPTS, group="libvirt")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options of the section, for the sample file."""
    return [("libvirt", LIBVIRT_OPTS)]
