"""Results of upgrades, as a table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from packaging.version import Version
from prettytable import PrettyTable

from tests.placement.failover.judge import Answer, Judge
from tests.upgrade.machines import GuestFacts
from tests.upgrade.releases import Source

_REPEATS_NO_READS: Final = Version("0.2.0")
"""The last release that does not repeat a GET if another node of a Galera cluster ends its transaction."""


def _list_changes(step: str, before: Mapping[str, object], now: Mapping[str, object]) -> dict[str, str]:
    """Return a sentence for each value that has changed, by its name."""
    return {
        name: f"{name} was {was!r}, and is {now.get(name)!r} after {step}"
        for name, was in before.items()
        if now.get(name) != was
    }


@dataclass
class UpgradeOutcome:
    """Observations of an upgrade and of the way back, on one kind of database.

    :ivar source: the files from which both releases are installed.
    :ivar taken_out: the proxy took each service out before it stopped.
    :ivar schema_change: the times at which the migration began and ended, in monotonic seconds.
    """

    kind: str
    version: Version
    source: Source
    taken_out: bool = False
    judge: Judge | None = None
    guests: int = 0
    settings: int = 0
    seconds: float = 0.0
    moved: dict[str, str] = field(default_factory=dict)
    forgotten: dict[str, str] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    schema_change: tuple[float, float] = (0.0, 0.0)

    def note_losses(self, step: str) -> None:
        """Record the losses since the last call with the step in which they were found."""
        if self.judge is not None:
            self.losses += [f"{step}: {line}" for line in self.judge.wrong[len(self.losses) :]]

    def compare_guests(
        self, step: str, before: Mapping[str, GuestFacts | None], now: Mapping[str, GuestFacts | None]
    ) -> None:
        """Record guests that have ended or have other CPUs."""
        self.guests = len(before)
        self.moved |= _list_changes(step, before, now)

    def compare_settings(self, step: str, before: Mapping[str, object], now: Mapping[str, object]) -> None:
        """Record settings with another value."""
        self.settings = len(before)
        self.forgotten |= _list_changes(step, before, now)

    @property
    def requests(self) -> int:
        """Answers that the clients got."""
        return sum(number for name, number in self._counts.items() if name[-3:].isdigit())

    @property
    def lost(self) -> int:
        """Requests without an answer or with an error of the server, and wrong answers."""
        errors = sum(number for name, number in self._counts.items() if name[-3:-2] == "5")
        return errors - self.ended_reads + (len(self.judge.wrong) if self.judge else 1)

    @property
    def ended_reads(self) -> int:
        """Requests that old services answered 503, because the migration ended their transactions."""
        return sum(each.refused and self._is_ended_read(each) for each in self._answers)

    def _is_ended_read(self, answer: Answer) -> bool:
        began, ended = self.schema_change
        is_old = self.kind == "galera" and self.version <= _REPEATS_NO_READS
        return is_old and answer.answered >= began and answer.asked <= ended

    @property
    def _answers(self) -> Sequence[Answer]:
        return self.judge.answers if self.judge else ()

    @property
    def _counts(self) -> Counter[str]:
        return self.judge.counts if self.judge else Counter()

    @property
    def problems(self) -> list[str]:
        """Return a line for each loss."""
        wrong = list(self.losses) if self.judge else ["nothing ran"]
        names = [name for name in self._counts if name[-3:-2] == "5"] if self.lost else []
        errors = [f"{self._counts[name]} times {name}" for name in names]
        return [*wrong, *errors, *self._refusals(), *self.moved.values(), *self.forgotten.values()]

    def _refusals(self) -> list[str]:
        """Return a line for each answer 503."""
        if self.judge is None:
            return []
        refused = [each for each in self.judge.answers if each.refused and not self._is_ended_read(each)]
        moment = self.judge.moment
        return [f"503 of service {each.service}, {moment(each.asked)}asked" for each in refused[:5]]


def draw_table(outcomes: Sequence[UpgradeOutcome]) -> str:
    """Format the results, with a line for each loss."""
    table = PrettyTable(
        [
            "From",
            "Installed by",
            "Database",
            "Taken out",
            "Requests",
            "Lost",
            "By old",
            "Guests",
            "Moved",
            "Settings",
            "Forgotten",
            "Seconds",
        ]
    )
    table.align = "r"
    for column in ("From", "Installed by", "Database"):
        table.align[column] = "l"
    for each in outcomes:
        guests, settings = (each.guests, len(each.moved)), (each.settings, len(each.forgotten))
        counts = (each.requests, each.lost, each.ended_reads, *guests, *settings)
        table.add_row(
            [
                each.version,
                each.source,
                each.kind,
                "yes" if each.taken_out else "no",
                *counts,
                f"{each.seconds:.0f}",
            ]
        )
    return "\n".join([str(table), *(line for each in outcomes for line in each.problems[:10])])
