"""The options in ``[tracing]``: traces of requests, which the service sends to an OpenTelemetry collector."""

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
Whether the service traces requests. Each request is a span, with one span
for its handler and one for each transaction in the database. If an
authenticated client sends the header "traceparent", the request continues the
trace of the client. Spans contain no query, body, token or name of a user. The
option needs more Python packages. For these packages, add [tracing] to the
path of the wheel in the command of pip.
""",
    ),
    cfg.URIOpt(
        "endpoint",
        default="http://127.0.0.1:4318/v1/traces",
        schemes=["http", "https"],
        help="""
Complete URL at which a collector receives OTLP over HTTP. Requests do not
wait for the collector. While the collector does not answer, each worker
keeps the newest 2048 spans, and logs that older spans were dropped. Other
settings for the collector come from environment variables:
OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE,
OTEL_RESOURCE_ATTRIBUTES.

""",
    ),
    cfg.FloatOpt(
        "sample_ratio",
        default=1.0,
        min=0.0,
        max=1.0,
        help="""
Share of the requests that the service traces, from 0 to 1. If an authenticated
client sends the header "traceparent", this header decides whether the service
traces the request. The option applies to all other requests.

""",
    ),
]
