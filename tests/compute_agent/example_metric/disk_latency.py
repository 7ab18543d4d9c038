"""A metric for watermarks: the mean time of a disk request since the last round, in milliseconds."""

from compute_agent.qos.metrics import (
    BLOCKIO,
    MeasuringRound,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
    host_usage,
)


def parse_requests(text: str) -> tuple[int, int]:
    """The number of requests of all disks since boot, and their duration in milliseconds
    (Documentation/admin-guide/iostats.rst).
    """
    lines = [line.split() for line in text.splitlines()]
    disks = [words for words in lines if words[2].startswith(("sd", "vd", "nvme"))]
    return (
        sum(int(words[3]) + int(words[7]) for words in disks),
        sum(int(words[6]) + int(words[10]) for words in disks),
    )


def measure_latency(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """The mean over all disks. The metric has no values of guests."""
    path = f"{now.root}/proc/diskstats"
    last = now.parse_file(path, parse_requests)
    first = before.parse_file(path, parse_requests) if before else None
    if last is None or first is None:
        return MetricUsage()
    requests, milliseconds = last[0] - first[0], last[1] - first[1]
    return host_usage(milliseconds / requests if requests > 0 else 0.0)


DISK_LATENCY = WatermarkMetric(
    "disk_latency", MetricUnit.OTHER, action_priority=1, measure=measure_latency, lever=BLOCKIO
)
