"""``[tracing]``: what is told to a collector of OpenTelemetry."""

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
Whether requests leave traces: one span for each, within it one for what the
handlers took and one for each time the database was asked. It goes on with the
trace of a client that sends the header traceparent, once it is known who that
is. No query, body, token or name of a caller is in them. Needs the packages
that the extra tracing of the wheel brings.
""",
    ),
    cfg.URIOpt(
        "endpoint",
        default="http://127.0.0.1:4318/v1/traces",
        schemes=["http", "https"],
        help="""
Where spans are sent: the whole URL at which a collector takes OTLP over HTTP.
Requests do not wait for it: while it is away the newest 2048 spans of each
worker are kept, and the log says that others were dropped. What a collector
needs beside it is in variables of the environment: OTEL_EXPORTER_OTLP_HEADERS,
OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES.
""",
    ),
    cfg.FloatOpt(
        "sample_ratio",
        default=1.0,
        min=0.0,
        max=1.0,
        help="""
Which part of the requests leaves traces, among those without a traceparent of
a client that is known: that says by itself whether its trace is wanted.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[tracing]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
