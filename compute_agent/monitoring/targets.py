"""What is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from compute_agent.resctrl.reader import DEFAULT_GROUP

Threads = Callable[[], Iterable[int]]


def no_threads() -> Iterable[int]:
    """The threads of what has none of its own, such as a class."""
    return ()


@dataclass(frozen=True, slots=True)
class Target:
    """A guest; or, with no `guest`, a QoS class: what runs in its control group.

    ``group`` is the control group that it is in. ``threads`` tells the thread ids of a guest when asked, and
    may raise OSError or DriverError when it is gone. ``cpu`` is its use of CPU in cores, if somebody knows.
    """

    guest: str
    qos_class: str
    group: str = DEFAULT_GROUP
    priority: int = 0
    name: str = field(default="", compare=False)
    threads: Threads = field(default=no_threads, compare=False)
    cpu: float | None = field(default=None, compare=False)

    @property
    def is_class(self) -> bool:
        """Whether this is a class as a whole."""
        return not self.guest

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others: guest and class."""
        return self.guest, self.qos_class
