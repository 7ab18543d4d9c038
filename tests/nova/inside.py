"""``python inside.py ours|stock NAME...``: runs tests of Nova, in the environment that it is in.

Each line of the standard output is the name of a test that ended and what came of it, with a tab between.
"""

import os
import sys
import unittest
from typing import Any


class _Told(unittest.TestResult):
    """Says what came of each test as soon as it is known."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output

    def addSuccess(self, test: Any) -> None:  # noqa: N802  # unittest's name
        self._say(test, "passed")

    def addSkip(self, test: Any, reason: Any = None, **details: Any) -> None:  # noqa: N802
        self._say(test, "skipped")

    def addExpectedFailure(self, test: Any, *error: Any, **details: Any) -> None:  # noqa: N802
        self._say(test, "passed")

    def addUnexpectedSuccess(self, test: Any, **details: Any) -> None:  # noqa: N802
        self._say(test, "failed")

    def addFailure(self, test: Any, error: Any = None, **details: Any) -> None:  # noqa: N802
        self._say(test, "failed")
        self._explain(test, error, details)

    def addError(self, test: Any, error: Any = None, **details: Any) -> None:  # noqa: N802
        self._say(test, "failed")
        self._explain(test, error, details)

    def _say(self, test: Any, outcome: str) -> None:
        print(test.id(), outcome, sep="\t", file=self._output, flush=True)

    def _explain(self, test: Any, error: Any, details: Any) -> None:
        said = details.get("details", {})
        texts = [each.as_text() for name, each in said.items() if name.startswith("traceback")]
        if error:
            texts.append(self._exc_info_to_string(error, test))  # type: ignore[attr-defined]  # unittest's own
        print(f"{test.id()}\n{''.join(texts)}", file=sys.stderr, flush=True)


def main() -> None:
    """Run what the arguments name."""
    kind, *names = sys.argv[1:]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever tests print is of the other one
    import nova.tests.functional  # noqa: F401  # first: it changes modules that others import

    if kind == "ours":
        from tests.nova import fixture

        fixture.install()
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    suite.run(_Told(output))


if __name__ == "__main__":
    main()
