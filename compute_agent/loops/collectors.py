"""Calls collectors, which installed packages bring, and offers the amounts that they have measured.

A collector that hangs blocks only its own thread, and the values of the collector expire. But collectors run
in the process of the agent: a collector that uses all memory, or never releases the interpreter's lock, stops
the agent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from itertools import islice
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.kept_json import KeptFile
from compute_agent.model.messages import printable_text
from compute_agent.reclaim.collectors import (
    CLASSES_FORMAT,
    FILE,
    MAX_MEASUREMENTS,
    ClassMeasurement,
    CollectedAmount,
    CollectedClasses,
    check_measurement,
    installed_collectors,
)
from compute_agent.reclaim.offers import term_row
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec, log_failures

LOG = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds between two calls of a collector."""

HANGING_SECONDS: Final = 120.0
"""Seconds after which a call of a collector is reported as hanging."""


COLLECTOR_THREAD: Final = ThreadSpec(
    "collector",
    INTERVAL,
    "calls a collector of another package; one thread each, as a collector may hang",
    NO_LOCK,
    "the collector",
)


@dataclass(frozen=True, slots=True)
class _CollectorAnswer:
    """The last answer of a collector.

    :ivar classes: the resource classes of which the collector measures amounts.
    :ivar told: the measured amounts, by resource class and by name of the host, NUMA node or cache.
    :ivar trouble: the failure of the collector as text; empty means no failure.
    """

    classes: frozenset[str] = frozenset()
    told: Mapping[tuple[str, str], ClassMeasurement] = field(default_factory=dict)
    trouble: str = ""


class _CollectorRunner:
    """Calls one collector in a thread, and keeps its last answer in ``heard``."""

    def __init__(self, point: EntryPoint, clock: Callable[[], float]) -> None:
        self.name = point.name
        self.heard = _CollectorAnswer()
        self._point = point
        self._clock = clock
        self._collector: Any = None
        self._began: float | None = None
        self._thread = PeriodicTask(
            COLLECTOR_THREAD,
            self.call_collector,
            lambda took: INTERVAL,
            log_failures(LOG, "A collector cannot be called"),
            name=f"collector {point.name}",
        )

    def start(self) -> None:
        """Start the thread; a second call changes nothing."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for its end, because the collector can hang."""
        self._thread.stop(0.0)

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def failure_text(self) -> str:
        """The failure of the collector as text, such as a call that hangs; empty if there is no failure."""
        # The start of the call is read once, because the thread may end the call between two reads.
        began = self._began
        if began is not None and (seconds := time.monotonic() - began) > HANGING_SECONDS:
            return f"it has not answered for {int(seconds // 60)} minutes"
        return self.heard.trouble

    def call_collector(self) -> None:
        """Call the collector once; any exception becomes the failure in its answer."""
        self._began = time.monotonic()
        try:
            self.heard = self._read_answer()
        except BaseException as error:  # a SystemExit of the collector must not end the agent
            self.heard = replace(self.heard, told={}, trouble=f"it failed: {_error_text(error)}")
        finally:
            self._began = None

    def _read_answer(self) -> _CollectorAnswer:
        if self._collector is None:
            loaded = self._point.load()
            # An entry point names a collector, or a class or function that returns a collector.
            self._collector = loaded() if callable(loaded) else loaded
        classes = frozenset(self._collector.resource_classes)
        if not classes or not all(isinstance(name, str) and name.isprintable() for name in classes):
            raise ValueError("resource_classes are not names of resource classes")
        self.heard = replace(self.heard, classes=classes)  # the classes stay if measuring fails
        told: dict[tuple[str, str], ClassMeasurement] = {}
        trouble = ""
        # One more measurement than the maximum is read, in order to notice that there are too many.
        for number, one in enumerate(islice(self._collector.collect(), MAX_MEASUREMENTS + 1)):
            try:
                if number == MAX_MEASUREMENTS:
                    raise ValueError(f"it reported more than {MAX_MEASUREMENTS} measurements")
                measured = check_measurement(one, classes, self._clock())
                key = measured.resource_class, measured.zone
                if key in told:
                    raise ValueError(f"it reported {key[0]} of {key[1] or 'the host'!r} twice")
                told[key] = measured
            except ValueError as error:
                # Only the first fault is reported. The other measurements still count.
                trouble = trouble or str(error)
        return _CollectorAnswer(classes, told, trouble)


def _error_text(error: BaseException) -> str:
    """The printable text of an exception, even if the ``__str__`` of its class raises an exception itself."""
    try:
        return printable_text(f"{type(error).__name__}: {error}")
    except Exception:
        return printable_text(type(error).__name__)


class CollectorLoops:
    """Runs the collectors, and keeps their offered amounts.

    Only one thread may use the object, but any thread may call add_to_tree().
    """

    def __init__(
        self,
        names: Sequence[str],
        state_path: Path,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        clock: Callable[[], float],
    ) -> None:
        self._file = _kept_file(state_path)
        self._recorder = recorder
        self._clock = clock
        self.runners: dict[str, _CollectorRunner] = {}
        self.known: Mapping[str, CollectedClasses] = {}
        """The resource classes of each collector with their amounts, by the collector's name. Each round
        replaces the mapping.
        """
        self._troubles: Mapping[str, str] = {}
        self._failing = Gauge(
            "compute_agent_collector_failing",
            "1 if the last answer of this collector of capacity was not usable, otherwise 0.",
            ["collector"],
            registry=registry,
        )
        self._offered = Gauge(
            "compute_agent_collected_offered",
            "Offered amount of a collector's resource class.",
            ["provider", "resource_class"],
            registry=registry,
        )
        self._rounds = Counter(
            "compute_agent_collector_changes",
            "Changes of offered amounts of collectors' resource classes.",
            registry=registry,
        )
        self.use_collectors(names)

    def use_collectors(self, names: Sequence[str]) -> None:
        """Use the collectors with these names from now on, and stop all other collectors."""
        before = self.runners
        if names and not before:
            # The file is read only for the first collectors. Later, the amounts in memory are newer.
            self.known = self._file.load() or {}
        points = installed_collectors()
        self.runners = {
            name: before.get(name) or _CollectorRunner(points[name], self._clock)
            for name in names
            if name in points
        }
        for name in before.keys() - self.runners.keys():
            before[name].stop()
        self.known = {name: one for name, one in self.known.items() if name in self.runners}
        self._troubles = {name: what for name, what in self._troubles.items() if name in self.runners}
        # The series of removed collectors must go. The next round sets the series of the remaining collectors
        # again.
        self._failing.clear()
        self._offered.clear()

    def start(self) -> None:
        """Start the threads of new collectors."""
        for runner in self.runners.values():
            runner.start()

    def stop(self) -> None:
        """Stop the threads, and save the measured amounts."""
        for runner in self.runners.values():
            runner.stop()
        if self.runners:
            self._save()

    @property
    def is_idle(self) -> bool:
        """Whether no collector is configured."""
        return not self.runners

    @property
    def _current_classes(self) -> Mapping[str, CollectedClasses]:
        """The amounts of the present collectors. Collectors that a reload has removed are not included."""
        runners = self.runners
        return {name: one for name, one in self.known.items() if name in runners}

    @property
    def failure_texts(self) -> tuple[str, ...]:
        """Return a sentence about each collector that fails."""
        runners = self.runners
        return tuple(
            f"[capacity] collectors: {name}: {what}"
            for name, what in self._troubles.items()
            if name in runners
        )

    def run_round(self, tree: ProviderTree) -> bool:
        """Update offered amounts from the latest answers of collectors; return whether any has changed."""
        if self.is_idle:
            return False
        now, changed = self._clock(), False
        taken: dict[str, str] = {}
        known: dict[str, CollectedClasses] = {}
        for name, runner in self.runners.items():
            heard, before = runner.heard, self.known.get(name, CollectedClasses())
            # Until the first answer of a collector, its saved classes count, so that they stay withheld.
            classes = heard.classes or before.classes
            twice = sorted(classes & taken.keys())
            # If two collectors report the same class, the collector that the option names first counts.
            classes -= taken.keys()
            taken |= dict.fromkeys(classes, name)
            found = _merge_answer(tree, classes, heard, before, now)
            known[name] = CollectedClasses(classes, found)
            for node, resource_class in _provided_classes(tree, classes):
                key = resource_class, node.uuid
                was, is_now = before.collected.get(key, CollectedAmount()), found[key]
                self._offered.labels(node.name, resource_class).set(is_now.offered_amount(now))
                if is_now.offer.published != was.offer.published:
                    changed = True
                    self._record_offer(name, node, resource_class, was, is_now, now)
            trouble = runner.failure_text or _find_misplaced(tree, classes, heard)
            self._note_failure(name, f"{taken[twice[0]]} reports {twice[0]} already" if twice else trouble)
        self.known = known
        if changed or self._file.is_due(now):
            self._save()
        return changed

    def _note_failure(self, name: str, trouble: str) -> None:
        """Log a new failure of a collector, and set the collector's gauge."""
        self._failing.labels(name).set(bool(trouble))
        if trouble and name not in self._troubles:
            LOG.warning("The collector %s of [capacity] collectors fails: %s", name, trouble)
        others = {one: what for one, what in self._troubles.items() if one != name}
        self._troubles = {**others, name: trouble} if trouble else others

    def _record_offer(
        self,
        name: str,
        node: ProviderNode,
        resource_class: str,
        was: CollectedAmount,
        found: CollectedAmount,
        now: float,
    ) -> None:
        self._rounds.inc()
        self._recorder.record_event(
            LOG.info,
            EventKind.OFFER,
            None,
            "The provider %s offers %d of %d %s (before: %d)",
            node.name,
            found.offer.published,
            _largest_offer(node, resource_class),
            resource_class,
            was.offer.published,
            reason=found.explain_offer(name, now),
        )

    def _save(self) -> None:
        self._file.save(CLASSES_FORMAT.dump(self.known), self._clock())

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Add the collectors' classes to the provider tree. Amounts that are not offered now are reserved."""
        return withhold_classes(tree, self._current_classes, self._clock())

    def list_rows(self, tree: ProviderTree) -> list[dict[str, Any]]:
        """Rows with the measured and the offered amount of each class and provider, for commands."""
        now, rows = self._clock(), []
        for name, known in self._current_classes.items():
            for node, resource_class in _provided_classes(tree, known.classes):
                found = known.collected.get((resource_class, node.uuid), CollectedAmount())
                for words, amount in (
                    (found.explain_offer(name, now), found.usable_amount(now)),
                    (
                        f"offered of {_largest_offer(node, resource_class)} {resource_class}"
                        " (more after 15 minutes)",
                        found.offered_amount(now),
                    ),
                ):
                    rows.append(term_row(node.name, words, amount, resource_class))
        return rows


def _merge_answer(
    tree: ProviderTree, classes: frozenset[str], heard: _CollectorAnswer, before: CollectedClasses, now: float
) -> dict[tuple[str, str], CollectedAmount]:
    """Compute the amounts after a new answer of a collector, by resource class and uuid of the provider."""
    found = {}
    for node, resource_class in _provided_classes(tree, classes):
        key = resource_class, node.uuid
        told = heard.told.get((resource_class, zone_of(tree, node)))
        was = before.collected.get(key, CollectedAmount())
        found[key] = was.with_measurement(told, _largest_offer(node, resource_class), now)
    return found


def _find_misplaced(tree: ProviderTree, classes: frozenset[str], heard: _CollectorAnswer) -> str:
    """Describe a measurement that has no inventory or exceeds it; empty if there is none."""
    totals = {
        (name, zone_of(tree, node)): node.inventories[name].total
        for node, name in _provided_classes(tree, classes)
    }
    for key, told in heard.told.items():
        where = printable_text(key[1]) or "the host"
        if key not in totals:
            return f"it reported {key[0]} of {where}, which has no inventory of it"
        if told.amount > totals[key]:
            return f"it reported {told.amount:g} {key[0]} of {where}, more than the inventory's {totals[key]}"
    return ""


def with_kept(tree: ProviderTree, names: Sequence[str], state_path: Path, now: float) -> ProviderTree:
    """Return the provider tree without the amounts that a starting agent withholds by its saved file."""
    kept = (_kept_file(state_path).peek_content() or {}) if names else {}
    return withhold_classes(tree, {name: one for name, one in kept.items() if name in names}, now)


def withhold_classes(tree: ProviderTree, known: Mapping[str, CollectedClasses], now: float) -> ProviderTree:
    """Return the provider tree in which the collectors' classes are withheld, except for current offers."""
    more: dict[str, dict[str, int]] = {}
    for one in known.values():
        for node, resource_class in _provided_classes(tree, one.classes):
            found = one.collected.get((resource_class, node.uuid), CollectedAmount())
            amount = _largest_offer(node, resource_class) - found.offered_amount(now)
            withheld = more.setdefault(node.uuid, dict(node.withheld))
            # The class can be withheld for another reason, too, such as steal time: the larger amount counts.
            withheld[resource_class] = max(amount, withheld.get(resource_class, 0))
    nodes = (replace(node, withheld=more[node.uuid]) if node.uuid in more else node for node in tree.nodes)
    return replace(tree, nodes=tuple(nodes))


def zone_of(tree: ProviderTree, node: ProviderNode) -> str:
    """The name that collectors use for a provider: the last part of its full name; empty for the root."""
    return node.name.removeprefix(tree.root.name).lstrip("_")


def _provided_classes(tree: ProviderTree, classes: Iterable[str]) -> list[tuple[ProviderNode, str]]:
    return [(node, name) for name in sorted(classes) for node in tree.providers_of(name)]


def _largest_offer(node: ProviderNode, resource_class: str) -> int:
    own = node.inventories[resource_class]
    return max(0, own.total - own.reserved)


def _kept_file(state_path: Path) -> KeptFile[Mapping[str, CollectedClasses]]:
    return KeptFile(state_path / FILE, CLASSES_FORMAT.parse, "The record of collectors' amounts")
