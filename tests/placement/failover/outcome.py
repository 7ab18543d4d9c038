"""What a run of faults showed, as a table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from prettytable import PrettyTable

from tests.placement.failover.judge import Judge, longest_refusal

WRONG = ("lost", "doubled", "stale", "exceeded", "other")
"""What must not be: a claim lost or counted twice, an old answer, more used than there is, other errors."""

SECONDS_REFUSED = 10.0
"""For how long a service may answer nothing but 503, beside the time in which there is nobody to be asked."""

SECONDS_STAYED = 1.0
"""For how long a connection may stay on a server that only reads."""


@dataclass
class Fault:
    """One fault: its kind, when it began, and for how long nobody could be asked who is to be asked."""

    kind: str
    began: float
    ended: float = 0.0


@dataclass
class FailoverOutcome:
    """What was broken how often, how requests were answered, and what was wrong."""

    title: str
    seed: int
    faults: list[Fault] = field(default_factory=list)
    excused: list[tuple[float, float]] = field(default_factory=list)
    judge: Judge | None = None
    #: seconds that a connection stayed on a server that only reads, at most
    stayed: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return self.judge.counts if self.judge else Counter()

    @property
    def wrong(self) -> Sequence[str]:
        """What was wrong, in words."""
        return self.judge.wrong if self.judge else ["nothing ran"]

    def longest_refusal(self, kind: str | None = None) -> float:
        """For how many seconds a service answered nothing but 503, in faults of this kind."""
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
        """All of it, for people."""
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
