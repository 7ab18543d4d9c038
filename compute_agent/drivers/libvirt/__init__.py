"""Guests that are QEMU domains of a libvirtd on this host: domain uuid = consumer uuid."""
