"""Runner of Nova's tests in Nova's environment: ``python inside.py ours|stock NAME...``.

Each line of the standard output is the name of a test and its result, separated by a tab. The first result of
all tests is "waiting"; each test that ends has a further line. A test that cannot be aborted ends the
process.
"""

import faulthandler
import inspect
import os
import sys
import unittest
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

_PATIENCE: Final = 12
"""Factor for the five or ten seconds that Nova's tests wait, since a busy machine may take longer."""

_SECONDS_EACH: Final = 600
"""Time limit of a test: a few of Nova's hang once in a while with either service."""
_SECONDS_TO_GIVE_UP: Final = 60
"""Time limit of the cleanup of an aborted test, which may hang, too."""


class _Told(unittest.TestResult):
    """Prints the result of each test immediately."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output
        self._limit: Any = None

    def startTest(self, test: Any) -> None:  # noqa: N802
        from eventlet import Timeout

        super().startTest(test)
        self._limit = Timeout(_SECONDS_EACH)
        faulthandler.dump_traceback_later(_SECONDS_EACH + _SECONDS_TO_GIVE_UP, exit=True)

    def stopTest(self, test: Any) -> None:  # noqa: N802
        faulthandler.cancel_dump_traceback_later()
        self._limit.cancel()
        super().stopTest(test)

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


def _have_patience() -> None:
    """Multiply the default timeouts of Nova's tests."""
    from nova.tests.fixtures import notifications
    from nova.tests.functional import integrated_helpers

    for module in (integrated_helpers, notifications):
        for function in _functions(module):
            parameters = inspect.signature(function).parameters.values()
            function.__defaults__ = tuple(
                each.default * _PATIENCE if each.name in {"max_retries", "timeout"} else each.default
                for each in parameters
                if each.default is not each.empty and each.kind is not each.KEYWORD_ONLY
            )


def _functions(module: ModuleType) -> list[Any]:
    """Return the methods of the classes that the module defines."""
    classes = [each for each in vars(module).values() if inspect.isclass(each)]
    own = [each for each in classes if each.__module__ == module.__name__]
    return [each for one in own for each in vars(one).values() if inspect.isfunction(each)]


def _ignore_deprecations() -> None:
    """Ignore warnings of SQLAlchemy versions newer than Nova, which Nova's tests turn into errors."""
    from sqlalchemy.exc import SADeprecationWarning

    from nova.tests import fixtures

    set_up = fixtures.WarningsFixture.setUp

    def set_up_and_ignore(fixture: Any) -> None:
        set_up(fixture)
        warnings.filterwarnings("ignore", category=SADeprecationWarning)

    fixtures.WarningsFixture.setUp = set_up_and_ignore


def _tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _tests(each)
        else:
            yield each


def main() -> None:
    """Run the tests in the arguments."""
    kind, *names = sys.argv[1:]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # tests print to the other one
    import nova.tests.functional  # noqa: F401  # first, because it replaces modules that others import

    if kind == "ours":
        from tests.nova import fixture

        fixture.install()
    _have_patience()
    _ignore_deprecations()
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    for test in _tests(suite):
        print(test.id(), "waiting", sep="\t", file=output, flush=True)
    suite.run(_Told(output))


if __name__ == "__main__":
    main()
