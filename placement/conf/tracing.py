"""The section ``[tracing]``: the traces that a collector of OpenTelemetry gets."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup(
    "tracing", title="Tracing", help="Traces of requests, for a collector of OpenTelemetry."
)

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Whether the service traces requests. Each request is a span, with one span for its handler and one for each
query to the database. A request with the header traceparent continues the trace of its client, once the
client is authenticated. Spans have no query, body, token or name of a caller. The option needs the packages
of the extra "tracing" of the wheel.
""",
    ),
    cfg.URIOpt(
        "endpoint",
        default="http://127.0.0.1:4318/v1/traces",
        schemes=["http", "https"],
        help="""
Complete URL at which a collector takes OTLP over HTTP. Requests do not wait for the collector. While the
collector is away each worker keeps the newest 2048 spans, and the log says that others were dropped.
Environment variables have the other settings of a collector: OTEL_EXPORTER_OTLP_HEADERS,
OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES.
""",
    ),
    cfg.FloatOpt(
        "sample_ratio",
        default=1.0,
        min=0.0,
        max=1.0,
        help="""
Share of the requests that the service traces, from 0 to 1. The option applies to requests without the header
traceparent, or without an authenticated client. For all other requests the header says whether the request is
traced.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of ``[tracing]``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options by group."""
    return [(GROUP, OPTIONS)]
