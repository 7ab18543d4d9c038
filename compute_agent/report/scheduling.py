"""Whether new guests are sent to this host, as a trait of its root provider says.

Nova's scheduler forbids COMPUTE_STATUS_DISABLED by itself, whatever a flavor asks for; nova-compute sets it
where somebody disabled the service. A second trait tells ours from that one, so that nothing has to be
remembered: what carries no mark is somebody else's, and stays.
"""

from __future__ import annotations

DISABLED = "COMPUTE_STATUS_DISABLED"
MARK = "CUSTOM_WATERMARK_REACHED"


def switched(traits: frozenset[str], off: bool) -> frozenset[str]:
    """The traits of the root provider with new guests kept away (``off``), or not by us any more."""
    if off:
        return traits if DISABLED in traits else traits | {DISABLED, MARK}
    return traits - {DISABLED, MARK} if MARK in traits else traits
