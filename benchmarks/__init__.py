"""Programs that measure, each run as ``python -m benchmarks.NAME`` from the checkout."""

import sys
from types import TracebackType


def report_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error: one line for a missing package, a traceback for anything else."""
    if isinstance(error, ModuleNotFoundError):
        sys.stderr.write(
            f"{error}. This needs what tests need: `make .venv/.installed` installs it, and"
            " .venv/bin/python -m benchmarks.NAME runs it.\n"
        )
        return
    sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # `python -m` looks for the program; a test that imports one has other arguments
    sys.excepthook = report_error
