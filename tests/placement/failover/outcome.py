"""The results of a run with faults, as a table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from prettytable import PrettyTable

from tests.placement.failover.judge import Judge, longest_refusal

WRONG = ("lost", "doubled", "stale", "exceeded", "unanswered", "other")
"""Errors: a claim lost or counted twice, an outdated answer, exceeded capacity, no answer, others."""

SECONDS_REFUSED = 10.0
"""Maximum seconds with only 503 from a service, without the time in which no server is available."""

SECONDS_STAYED = 1.0
"""Maximum seconds of a connection to a read-only server."""


@dataclass
class Fault:
    """One fault: its kind, its begin, and the end of the time in which no server was available."""

    kind: str
    began: float
    ended: float = 0.0


@dataclass
class FailoverOutcome:
    """The faults, the answers to requests, and the errors of a run."""

    title: str
    seed: int
    faults: list[Fault] = field(default_factory=list)
    excused: list[tuple[float, float]] = field(default_factory=list)
    judge: Judge | None = None
    #: longest time, in seconds, of a connection to a read-only server
    stayed: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return self.judge.counts if self.judge else Counter()

    @property
    def wrong(self) -> Sequence[str]:
        """Descriptions of the errors."""
        return self.judge.wrong if self.judge else ["nothing ran"]

    def longest_refusal(self, kind: str | None = None) -> float:
        """Return the longest time, in seconds, in which a service has answered only 503, during faults of
        this kind.
        """
        if self.judge is None:
            return 0.0
        chosen = [fault for fault in self.faults if kind in (None, fault.kind)]
        return max(
            (
                longest_refusal(
                    [a for a in self.judge.answers if fault.began <= a.answered <= fault.ended], self.excused
                )
                for fault in chosen
            ),
            default=0.0,
        )

    def table(self) -> str:
        """Format the results as a table."""
        table = PrettyTable(["Fault", "Times", "Longest time with 503 only, s"])
        table.align = "r"
        table.align["Fault"] = "l"
        for kind, times in sorted(Counter(fault.kind for fault in self.faults).items()):
            table.add_row([kind, times, f"{self.longest_refusal(kind):.1f}"])
        table.add_row(["all", len(self.faults), f"{self.longest_refusal():.1f}"])
        answers = ", ".join(f"{name}: {n}" for name, n in sorted(self.counts.items()) if name not in WRONG)
        verdict = ", ".join(f"{name} {self.counts[name]}" for name in WRONG)
        without = sum(end - begin for begin, end in self.excused)
        return "\n".join(
            (
                f"{self.title}, seed {self.seed}",
                str(table),
                f"answers: {answers}",
                f"no server took anything for {without:.1f} s in all; "
                f"a connection stayed on a read-only server for {self.stayed:.1f} s at most",
                f"{verdict}",
                *self.wrong[:10],
            )
        )
