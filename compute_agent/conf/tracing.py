"""What is told to a collector of OpenTelemetry."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "tracing"

OPTS: Final = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="Whether reports to Placement leave traces: one span for each report, and within it one for each"
        " request, which Placement's own spans are part of, as the header traceparent says. No query, body or"
        " token is in them. Needs the packages that the extra tracing of the wheel brings.",
    ),
    cfg.URIOpt(
        "endpoint",
        default="http://127.0.0.1:4318/v1/traces",
        schemes=["http", "https"],
        help="Where spans are sent: the whole URL at which a collector takes OTLP over HTTP. Nothing waits"
        " for it: while it is away the newest 2048 spans are kept, and the log says that others were dropped."
        " What a collector needs beside it is in variables of the environment: OTEL_EXPORTER_OTLP_HEADERS,"
        " OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES.",
    ),
    cfg.FloatOpt(
        "sample_ratio",
        default=1.0,
        min=0.0,
        max=1.0,
        help="Which part of the reports leaves traces.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [tracing] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
