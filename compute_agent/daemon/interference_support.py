"""What sections ``[interference:NAME]`` have to work with on this host: signals, levers, programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from oslo_config import cfg

from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.qos import interference_sections
from compute_agent.host.cycles import PerfEvents
from compute_agent.interference.signals import SIGNALS
from compute_agent.qos.guest_command import missing_program

_CPI: Final = "cpi"

_METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "run_delay": (),
    "cpu_pressure": ("cpu_pressure",),
    "io_pressure": ("io_pressure",),
    _CPI: (),
    "memory_bandwidth": ("memory_bandwidth",),
    "llc_occupancy": ("memory_bandwidth", "llc_occupancy"),
}
"""By signal the metrics of watermarks that are measured by the same means."""


def interference_warnings(
    conf: cfg.ConfigOpts, unmeasured_metrics: Mapping[str, str], unusable_levers: Mapping[str, str]
) -> Iterator[str]:
    """What will not come of the sections, a sentence each.

    ``unmeasured_metrics`` has the reason by metric that cannot be measured here, ``unusable_levers`` by lever
    that moves nothing.
    """
    for name, options in interference_sections(conf):
        section, signal = f"[{INTERFERENCE}{name}]", SIGNALS.get(options.signal or "")
        if options.escalate_command and (reason := missing_program(options.escalate_command)):
            yield f"{section} escalate_command: it will fail, as {reason}"
        if signal is None:
            continue  # which is refused
        reasons = [unmeasured_metrics.get(metric, "") for metric in _METRICS[signal.name]]
        reasons += [_without_counters()] if signal.name == _CPI else []
        if reason := next(filter(None, reasons), ""):
            yield f"{section} signal = {signal.name}: nobody is ever limited for it, as {reason}"
        elif options.mode == "act" and (reason := unusable_levers.get(signal.lever.name, "")):
            yield f"{section} mode = act: nobody is limited, as {reason}"


def _without_counters() -> str:
    """Why this process cannot count its own cycles; empty if it can."""
    counters = PerfEvents()
    try:
        counters.read((os.getpid(),))
        return counters.missing
    finally:
        counters.read(())  # they are open files
