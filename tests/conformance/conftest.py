"""Reports at the end of a run how many requests of the conformance suite passed on which database."""

from collections import Counter, defaultdict

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if "conformance" in properties and report.when == "call":
                outcomes[properties["conformance"]][report.outcome] += 1
    if outcomes:
        terminalreporter.section("conformance")
    for kind, counts in sorted(outcomes.items()):
        terminalreporter.write_line(f"{kind}: {counts.total():,} requests, {counts['passed']:,} passed")
