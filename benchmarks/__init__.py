"""Programs that measure: each is run as ``python -m benchmarks.NAME``, from the checkout."""

import sys
from types import TracebackType


def report_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that nobody caught: in one line if it is that a package is missing, else as always."""
    if isinstance(error, ModuleNotFoundError):
        sys.stderr.write(
            f"{error}. This needs what tests need: `make .venv/.installed` installs it, and"
            " .venv/bin/python -m benchmarks.NAME runs it.\n"
        )
        return
    sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # while `python -m` looks for the program; not where tests import one
    sys.excepthook = report_error
