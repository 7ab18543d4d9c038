"""Metrics that a program or a Prometheus query provides: a section ``[metric:NAME]`` for each metric."""

from typing import Final

from oslo_config import cfg

METRIC_SOURCE: Final = "metric:"

OPTS: Final = [
    cfg.StrOpt(
        "command",
        help="Program that prints the value of the metric, a number. Blanks separate arguments, and quotes"
        " work as in a shell, but no shell is started. The program gets PATH, HOME and similar environment"
        " variables of the agent, but no OS_* variables. Set either command or promql in a section.",
    ),
    cfg.StrOpt(
        "promql",
        help="Query of Prometheus. Its result, one series or a scalar, is the value of the metric."
        " Functions such as sum() and max() combine many series into one.",
    ),
    cfg.StrOpt(
        "url",
        default="http://127.0.0.1:9090",
        help="Address of the Prometheus server that answers the query promql.",
    ),
    cfg.StrOpt(
        "unit",
        default="number",
        choices=[
            ("cores", "CPUs"),
            ("bytes", "bytes; thresholds may have K, M, G and T"),
            ("bytes/s", "bytes a second; thresholds may have K, M, G and T"),
            ("percent", "percent"),
            ("number", "any other number"),
        ],
        help="Unit of the metric.",
    ),
    cfg.FloatOpt(
        "interval",
        default=30.0,
        min=1.0,
        help="Seconds between two readings. Rounds of watermarks between two readings use the last value.",
    ),
    cfg.FloatOpt(
        "timeout",
        default=10.0,
        min=0.1,
        max=300.0,
        help="Maximum duration of a reading, in seconds. After this time the agent ends the program or the"
        " connection, and the metric has no value until the next reading.",
    ),
    cfg.StrOpt(
        "lever",
        choices=[
            ("cpu_quota", "throttled guests get less CPU time"),
            ("blockio", "throttled guests get less block I/O"),
        ],
        help="Kind of limit that guests get when a watermark of this metric throttles them. By default,"
        " watermarks of this metric do not throttle guests.",
    ),
]

SECTIONS: Final = {f"{METRIC_SOURCE}NAME": OPTS}
