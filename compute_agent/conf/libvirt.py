"""Section ``[libvirt]``: the address of libvirtd on this host."""

from typing import Final

from oslo_config import cfg

LIBVIRT_OPTS: Final = [
    cfg.StrOpt("uri", default="qemu:///system", help="Address of libvirtd, which has to run on this host."),
]

SECTIONS: Final = {"libvirt": LIBVIRT_OPTS}
