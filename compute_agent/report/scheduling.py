"""Whether new guests are sent to this host, as traits of its root provider say.

Nova's scheduler forbids COMPUTE_STATUS_DISABLED by itself, whatever a flavor asks for; nova-compute sets it
where somebody disabled the service. The agent sets it as long as any of its own causes asks for it, and marks
each with a trait of its own. So several causes share one switch, what has been lost of the agent's memory can
be read back, and what carries no mark is somebody else's, and stays.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DISABLED: Final = "COMPUTE_STATUS_DISABLED"


class DisableCause(enum.StrEnum):
    """Why the agent keeps new guests away; the values are the traits that mark it."""

    WATERMARK = "CUSTOM_WATERMARK_REACHED"
    MAINTENANCE = "CUSTOM_HOST_DISABLED"


MARKS: Final = frozenset(cause.value for cause in DisableCause)

Causes = Mapping[DisableCause, bool]
"""Whether each cause keeps new guests away. One that is absent is not known: its mark stays as it is."""


@dataclass(frozen=True, slots=True)
class HostMaintenance:
    """What an operator said last: the host is ``off`` or not, why, and since when.

    ``since`` is in seconds since the epoch.
    """

    off: bool
    reason: str = ""
    since: float = 0.0


def switched(traits: frozenset[str], causes: Causes) -> frozenset[str]:
    """The traits of the root provider with new guests kept away as long as there is any cause."""
    if DISABLED in traits and not traits & MARKS:
        return traits
    asking = frozenset(cause.value for cause in DisableCause if causes.get(cause, cause.value in traits))
    return (traits - MARKS - {DISABLED}) | (asking | {DISABLED} if asking else asking)


def in_words(traits: frozenset[str]) -> str:
    """In words, who keeps new guests away by these traits of the root provider."""
    if DISABLED not in traits:
        return "let in"
    causes = [cause.name.lower() for cause in DisableCause if cause.value in traits]
    return f"kept away by {' and '.join(causes)}" if causes else f"kept away by somebody else's {DISABLED}"
