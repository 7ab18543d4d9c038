"""Section ``[tracing]``: traces of reports to Placement, for a collector of OpenTelemetry."""

from typing import Final

from oslo_config import cfg

OPTS: Final = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="Whether the agent traces its reports to Placement. Each report is a span, which contains one"
        " span for each request. The agent sends the header traceparent, so that Placement's own spans belong"
        " to the same trace. A span contains no query, body or token of its request. The option needs the"
        " Python packages of OpenTelemetry. To install them, give pip the name of the agent's wheel followed"
        " by [tracing].",
    ),
    cfg.URIOpt(
        "endpoint",
        default="http://127.0.0.1:4318/v1/traces",
        schemes=["http", "https"],
        help="URL at which a collector receives OTLP over HTTP. The agent does not wait for the collector."
        " While the collector does not answer, the agent keeps up to 2048 spans. The agent then drops older"
        " spans, and logs this. Further settings come from environment variables: OTEL_EXPORTER_OTLP_HEADERS,"
        " OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES.",
    ),
    cfg.FloatOpt(
        "sample_ratio",
        default=1.0,
        min=0.0,
        max=1.0,
        help="Share of the reports that the agent traces, from 0 to 1.",
    ),
]

SECTIONS: Final = {"tracing": OPTS}
