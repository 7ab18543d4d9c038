"""Reads metrics from sources outside the kernel: the output of a command, or a query of Prometheus.

Each source has a thread of its own, so that a slow source delays no other source.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from compute_agent.bounded_http import AnswerRefusedError, read_address
from compute_agent.conf.metric_source import METRIC_SOURCE
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration
from compute_agent.model.messages import printable_text
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec, log_failures
from compute_agent.throttling.guest_command import CommandFailedError, RunningProgram, run_program
from compute_agent.throttling.settings import MetricSource

LOG = logging.getLogger(__name__)

_MAX_BYTES: Final = 1 << 20
"""Maximum number of bytes of an answer from Prometheus."""


_MAX_REASON: Final = 200
"""Maximum number of characters of the shown reason why Prometheus refuses a query."""


class SourceAwayError(Exception):
    """A command or a Prometheus query has returned no value. The text of the exception has the reason."""


def read_value(source: MetricSource, running: RunningProgram | None = None) -> float:
    """Run the command or the Prometheus query of a metric; return the resulting number.

    The function takes at most ``source.timeout`` seconds, plus the time to resolve a host name.

    :param running: an object by which another thread can end the command.
    :raises SourceAwayError: the command failed, or Prometheus did not return exactly one number.
    """
    try:
        if source.command:
            return _parse_number(run_program(source.command, source.timeout, running).strip())
        query = urlencode({"query": source.promql, "timeout": f"{source.timeout:g}s"})
        address = f"{source.url}/api/v1/query?{query}"
        return parse_answer(read_address(address, source.timeout, _MAX_BYTES, accept="application/json"))
    except CommandFailedError as error:
        raise SourceAwayError(str(error)) from error
    except AnswerRefusedError as error:
        raise SourceAwayError(f"{source.url}: {error}{refusal_reason(error.content)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        where = source.command[0] if source.command else source.url
        raise SourceAwayError(f"{where}: {str(error) or type(error).__name__}") from error


def parse_answer(content: bytes) -> float:
    """Parse the answer to an instant query of Prometheus' HTTP API; return its single value.

    :raises ValueError: the answer has no value, or several values.
    """
    try:
        data = json.loads(content)["data"]
        kind, result = data["resultType"], data["result"]
        if kind == "scalar":
            return _parse_number(result[1])
        if kind != "vector":
            raise ValueError(f"the query gives a {kind}, not one number")
        if len(result) != 1:
            raise ValueError(f"the query gives {len(result)} series: make one of them, as by sum() or max()")
        return _parse_number(result[0]["value"][1])
    # The server at the configured address is perhaps not Prometheus.
    except (KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError("the answer is not one of Prometheus") from error


def refusal_reason(content: bytes) -> str:
    """The reason why Prometheus refused a query, after a colon; empty if the answer has no reason."""
    try:
        # An answer is, for example, {"status": "error", "errorType": "bad_data", "error": "1:5: parse error:
        # ..."}.
        reason = json.loads(content)["error"]
    # A proxy can answer instead of Prometheus.
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f": {printable_text(str(reason)[:_MAX_REASON])}"


def _parse_number(text: Any) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{str(text)[:100]!r} is no number") from error
    # An integer in JSON can have any number of digits.
    except OverflowError as error:
        raise ValueError("the value is too large") from error
    if not math.isfinite(value):
        raise ValueError(f"the value is {value}")
    return value


METRIC_SOURCE_THREAD: Final = ThreadSpec(
    "metric source",
    "``interval`` of its section",
    "reads a metric by a command or from Prometheus; one thread each, as a source may hang",
    NO_LOCK,
    "the operator's command, or Prometheus",
)


@dataclass(frozen=True, slots=True)
class _SourceReading:
    """The last read of a metric's source: its time in monotonic seconds, and the value or the failure."""

    time: float
    value: float | None = None
    trouble: str = ""


class _SourceRunner:
    """Reads one source in a thread."""

    def __init__(self, source: MetricSource, clock: Callable[[], float]) -> None:
        self.source = source
        self._clock = clock
        self._latest: _SourceReading | None = None
        self._began = clock()
        self._program = RunningProgram()
        self._thread = PeriodicTask(
            METRIC_SOURCE_THREAD,
            self.read_source,
            lambda took: max(0.0, source.interval - took),
            log_failures(LOG, "A metric source cannot be read"),
            name=f"metric {source.name}",
        )

    def start(self) -> None:
        """Start the thread; further calls have no effect."""
        self._thread.start()

    def stop(self) -> None:
        """Kill the source's command, and end the thread without waiting, as the source can hang."""
        self._thread.stop(0.0)
        # The command has a process group of its own. Without this call, it would run on after the end of the
        # agent.
        self._program.end_program()

    def read_source(self) -> None:
        """Read the source once. A failure is logged when it begins and when it ends."""
        before = self._latest
        was_away = before is not None and bool(before.trouble)
        try:
            latest = _SourceReading(self._clock(), read_value(self.source, self._program))
        except SourceAwayError as error:
            if self._program.is_ended:
                return
            latest = _SourceReading(self._clock(), trouble=printable_text(str(error)))
            if not was_away:
                LOG.warning(
                    "The metric of section [%s%s] has no value, so its watermarks neither set nor lift"
                    " limits: %s",
                    METRIC_SOURCE,
                    self.source.name,
                    latest.trouble,
                )
        else:
            if was_away:
                LOG.info("The metric of section [%s%s] has a value again", METRIC_SOURCE, self.source.name)
        self._latest = latest

    @property
    def current_value(self) -> float | None:
        """The value of the last read; None if this read has failed or was too long ago."""
        latest = self._latest
        return None if latest is None or self._is_late(latest.time) else latest.value

    @property
    def failure_text(self) -> str:
        """The reason why the source has no value; empty if it has one, or while the first read still runs."""
        latest = self._latest
        if self._is_late(self._began if latest is None else latest.time):
            return "it does not answer"
        return "" if latest is None else latest.trouble

    def _is_late(self, since: float) -> bool:
        return self._clock() - since > self.source.lasting_seconds


class MetricSources(AgentLoop, Collector):
    """Holds the configured metric sources. Only one thread may use it; any thread may call read_value()."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.runners: Mapping[str, _SourceRunner] = {}
        self._use_sources(conf)
        registry.register(self)

    def start(self) -> None:
        """Start the threads of new sources."""
        for runner in self.runners.values():
            runner.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use the sources of another configuration. Unchanged sources keep their value."""
        self._use_sources(conf)
        self.start()

    def stop(self) -> None:
        """Stop the threads, without waiting for a source that hangs."""
        for runner in self.runners.values():
            runner.stop()

    def read_value(self, name: str) -> float | None:
        """The last value of the metric with this name; None while its source has no value."""
        runner = self.runners.get(name)
        return None if runner is None else runner.current_value

    def collect(self) -> Iterator[Metric]:
        """Collect the gauge that shows which sources have no value."""
        failing = GaugeMetricFamily(
            "compute_agent_metric_source_failing",
            "1 if the source of this metric has no value, otherwise 0.",
            labels=("metric",),
        )
        for name, runner in self.runners.items():
            failing.add_metric((name,), bool(runner.failure_text))
        yield failing

    @property
    def failure_texts(self) -> tuple[str, ...]:
        """Return a sentence about each source without a value."""
        return tuple(
            f"[{METRIC_SOURCE}{name}] has no value, so its watermarks neither set nor lift limits: {trouble}"
            for name, runner in self.runners.items()
            if (trouble := runner.failure_text)
        )

    def _use_sources(self, conf: ReloadedConfiguration) -> None:
        before, runners = self.runners, {}
        for source in conf.settings.sources:
            present = before.get(source.name)
            if present is not None and present.source == source:
                runners[source.name] = present
            else:
                runners[source.name] = _SourceRunner(source, self._clock)
        # The mapping is replaced as a whole, so that a round reads either the old sources or the new sources.
        self.runners = runners
        for name, runner in before.items():
            if runners.get(name) is not runner:
                runner.stop()
