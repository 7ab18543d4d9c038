"""What a guest may be beside its CPUs and its memory: nothing of it is part of a query, but it has to be."""

from typing import Final

from placement_extras.flavors.flavor import NovaFlavor, refused
from placement_extras.flavors.guest import FlavorGuest, contradiction

_GIB: Final = 1 << 30
_MOST: Final = 65536
_PARTS: Final = ("sockets", "cores", "threads")


def check(guest: FlavorGuest) -> None:
    """Make sure of it.

    :raises InvalidRequest: what flavor and image say cannot be.
    """
    _check_sizes(guest.flavor)
    _check_serial_ports(guest)
    _check_cpu_topology(guest)
    guest.agreed_flag("pmu")
    if guest.flavor.vcpus > 1:
        guest.agreed_flag("vif_multiqueue_enabled")
    _check_left_out(guest)


def _check_sizes(flavor: NovaFlavor) -> None:
    image = flavor.image
    if flavor.ram < image.min_ram:
        raise refused(f"the image needs {image.min_ram} MiB of memory, the flavor has {flavor.ram}")
    if flavor.is_volume_backed or not flavor.disk:
        return  # no disk to speak of, or one of any size
    if flavor.disk < image.min_disk or flavor.disk * _GIB < image.size:
        raise refused(
            f"the image has {image.size} bytes and needs a disk of {image.min_disk} GiB; "
            f"that of the flavor has {flavor.disk} GiB"
        )


def _check_serial_ports(guest: FlavorGuest) -> None:
    if not guest.specs.get("hw:serial_port_count", "0"):
        return
    flavor, image = guest.number("serial_port_count")
    if flavor and image and image > flavor:
        raise contradiction("hw", "serial_port_count", str(flavor), str(image))


def _check_cpu_topology(guest: FlavorGuest) -> None:
    """An image wants no more sockets, cores or threads than it may, and may no more than the flavor."""
    for part in _PARTS:
        guest.number(f"cpu_{part}")  # the flavor's are wishes, which need not be met
        most, most_of_image = guest.number(f"cpu_max_{part}")
        if most and most_of_image > most:
            raise contradiction("hw", f"cpu_max_{part}", str(most), str(most_of_image))
        _, wanted = guest.number(f"cpu_{part}")
        if wanted > (most_of_image or most or _MOST):
            raise refused(
                f"hw_cpu_{part} of the image is {wanted}, but it may have {most_of_image or most or _MOST}"
            )


def _check_left_out(guest: FlavorGuest) -> None:
    """What Nova looks up elsewhere: a guest without it would be another one."""
    if guest.specs.get("accel:device_profile"):
        raise refused(
            "accel:device_profile is a profile that Cyborg has; "
            "ask for devices with resources<suffix>: and trait<suffix>:"
        )
