"""``python -m``: the compute agent, with a fast clock for interference and reclaimed capacity.

Five minutes of learning are thirty seconds. Use is measured by the true clock.
"""

import sys
import time
from dataclasses import replace
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.cmd.main import main
from compute_agent.loops import reclaimed, triggers

_SPEED: Final = 10.0
_BEGIN: Final = time.time()


def _monotonic() -> float:
    return time.monotonic() * _SPEED


def _date() -> float:
    return _BEGIN + (time.time() - _BEGIN) * _SPEED


def _hasten_interference() -> None:
    begin: Any = triggers.InterferenceLoop.__init__

    def begin_fast(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options, clock=_monotonic)
        read = self._reader.read_guests

        def read_guests(views: Any, online: Any, signals: Any, now: float, caches: Any) -> Any:
            sample = read(views, online, signals, time.monotonic(), caches)
            return sample and replace(sample, time=now)

        self._reader.read_guests = read_guests

    triggers.InterferenceLoop.__init__ = begin_fast  # type: ignore[method-assign]
    kept_json.SAVE_SECONDS = 0.0  # type: ignore[misc]  # tests read what was learnt
    triggers.INTERVAL = 10.0 / _SPEED  # type: ignore[misc]


def _hasten_reclaimed() -> None:
    begin: Any = reclaimed.ReclaimLoop.__init__

    def begin_fast(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options, clock=_date)

    reclaimed.ReclaimLoop.__init__ = begin_fast  # type: ignore[method-assign]
    reclaimed.INTERVAL = 60.0 / _SPEED  # type: ignore[misc]


if __name__ == "__main__":
    _hasten_interference()
    _hasten_reclaimed()
    sys.exit(main(sys.argv[1:]))
