"""Reads metrics from outside the kernel: the output of a command, or the result of a Prometheus query."""

from __future__ import annotations

import http.client
import json
import math
from typing import Any, Final
from urllib.parse import urlencode

from compute_agent.bounded_http import AnswerRefusedError, read_address
from compute_agent.model.messages import printable_text
from compute_agent.throttling.guest_command import CommandFailedError, RunningProgram, run_program
from compute_agent.throttling.watermarks.sources import MetricSource

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
