"""A block device of this machine, for tests of rates."""

from compute_agent.drivers.foreign.editor import HostFolders

_FOLDERS = HostFolders()
DISK = min(
    (one for one in _FOLDERS.block_devices if _FOLDERS.limited_device(f"/dev/block/{one}") == one), default=""
)
"""The number of a device for which systemd does not limit another device; empty if there is none."""
