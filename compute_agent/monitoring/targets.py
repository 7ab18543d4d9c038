"""What is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from compute_agent.model.guest import Guest
from compute_agent.resctrl.groups import DEFAULT_GROUP


def no_threads() -> Iterable[int]:
    """The threads of what has none of its own, such as a class."""
    return ()


@dataclass(frozen=True, slots=True)
class MonitorTarget:
    """A guest; or, with no ``guest``, a QoS class: what runs in its control group.

    ``group`` is the control group that it is in. ``threads`` tells the thread ids of a guest when asked, and
    may raise OSError or DriverError when it is gone. ``cpu`` is its use of CPU in cores, if somebody knows.
    """

    guest: str
    qos_class: str
    group: str = DEFAULT_GROUP
    priority: int = 0
    name: str = field(default="", compare=False)
    threads: Callable[[], Iterable[int]] = field(default=no_threads, compare=False)
    cpu: float | None = field(default=None, compare=False)

    @property
    def is_class(self) -> bool:
        """Whether this is a class as a whole."""
        return not self.guest

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others: guest and class."""
        return self.guest, self.qos_class


def build_targets(
    guests: Iterable[Guest],
    threads: Callable[[Guest], Iterable[int]],
    class_groups: Mapping[str, str],
    membership: Mapping[str, str] | None,
    cpu: Mapping[str, float] | None = None,
) -> list[MonitorTarget]:
    """Guests and classes as they are measured.

    ``class_groups`` are the control groups of the classes by name, ``membership`` those of the guests by
    uuid; a guest that is not in it is left out until it is. None: nobody puts guests into groups here, and
    all are in the default group. ``cpu`` is use of CPU in cores by uuid.
    """
    targets = [MonitorTarget("", name, group) for name, group in class_groups.items()]
    for guest in guests:
        group = DEFAULT_GROUP if membership is None else membership.get(guest.uuid)
        if group is not None:
            settings = guest.settings
            targets.append(
                MonitorTarget(
                    guest.uuid,
                    settings.qos_class,
                    group,
                    settings.priority,
                    guest.name,
                    _later(threads, guest),
                    None if cpu is None else cpu.get(guest.uuid),
                )
            )
    return targets


def _later(threads: Callable[[Guest], Iterable[int]], guest: Guest) -> Callable[[], Iterable[int]]:
    return lambda: threads(guest)
