"""Section ``[tracing]``: traces of reports for a collector of OpenTelemetry."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "tracing"

OPTS: Final = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="Whether reports to Placement leave traces: one span for each report, and within it one for each"
        " request. The header traceparent makes Placement's own spans parts of the trace. Spans have no"
        " query,"
        " body or token. Needs the packages that the extra tracing of the wheel brings.",
    ),
    cfg.URIOpt(
        "endpoint",
        default="http://127.0.0.1:4318/v1/traces",
        schemes=["http", "https"],
        help="URL at which a collector takes OTLP over HTTP. The agent does not wait for it: while it is away"
        " up to 2048 spans are kept, and the log reports dropped ones. Further settings come from the"
        " environment: OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES.",
    ),
    cfg.FloatOpt(
        "sample_ratio",
        default=1.0,
        min=0.0,
        max=1.0,
        help="Part of the reports that leave traces, from 0 to 1.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [tracing] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
