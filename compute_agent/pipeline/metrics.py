"""Metrics of the pipeline: events, guests, pending changes, and the state file.

All other packages create their own metrics, in the same registry.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from compute_agent.pipeline.guest_cache import CachedGuest, GuestView


class AgentMetrics:
    """The metrics of the pipeline, in the registry that all parts of the agent share."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "compute_agent_events", "Events handled by the worker.", ["event"], registry=self.registry
        )
        self.event_failures = Counter(
            "compute_agent_event_failures", "Events whose handling failed.", ["event"], registry=self.registry
        )
        self.guests = Gauge("compute_agent_guests", "Guests known to the agent.", registry=self.registry)
        self.unallocated_guests = Gauge(
            "compute_agent_unallocated_guests",
            "Guests without an allocation on this host.",
            registry=self.registry,
        )
        self.refused_guests = Gauge(
            "compute_agent_refused_guests",
            "Guests for which the agent found no CPUs.",
            registry=self.registry,
        )
        self.preserved_guests = Gauge(
            "compute_agent_preserved_guests",
            "Guests that the agent leaves unchanged, because of their setting preserve.",
            registry=self.registry,
        )
        self.lost_guests = Gauge(
            "compute_agent_lost_guests",
            "Guests that may run and that the driver cannot manage; `compute-agent status` says why.",
            registry=self.registry,
        )
        self.excluded_guests = Gauge(
            "compute_agent_excluded_guests",
            "Units and containers that are chosen as guests but are none, because their processes belong to"
            " other guests or to the host; `compute-agent status` says why.",
            registry=self.registry,
        )
        self.unknown_guests = Gauge(
            "compute_agent_unknown_guests",
            "Guests about which Placement has not answered yet, so that their allocations are not known.",
            registry=self.registry,
        )
        self.migrating_guests = Gauge(
            "compute_agent_migrating_guests",
            "Guests that run here while their migrations hold their allocations.",
            registry=self.registry,
        )
        self.stray_guests = Gauge(
            "compute_agent_stray_guests",
            "Guests that hold CPUs outside the present cpu_dedicated_set, or offline CPUs.",
            registry=self.registry,
        )
        self.remote_memory_guests = Gauge(
            "compute_agent_remote_memory_guests",
            "Guests whose allocated memory is on NUMA nodes without any of their CPUs.",
            registry=self.registry,
        )
        self.guests_stopped = Counter(
            "compute_agent_unplaced_guests_stopped",
            "Guests that were stopped at their start, because the agent found no CPUs for them.",
            registry=self.registry,
        )
        self.refused_settings = Gauge(
            "compute_agent_refused_settings",
            "Guests with settings or resources that the controller could not apply.",
            ["controller"],
            registry=self.registry,
        )
        self.pending = Gauge(
            "compute_agent_pending_changes",
            "Guests whose assignment is not yet in effect.",
            ["controller"],
            registry=self.registry,
        )
        self.drift = Counter(
            "compute_agent_drift_repairs",
            "Changes by other programs that the controller found at guests and corrected.",
            ["controller"],
            registry=self.registry,
        )
        self.controller_failures = Counter(
            "compute_agent_controller_failures",
            "Assignments that a controller could not put into effect.",
            ["controller"],
            registry=self.registry,
        )
        self.state_failures = Counter(
            "compute_agent_state_write_failures",
            "Failed writes of the state file.",
            registry=self.registry,
        )
        self.pin_seconds = Histogram(
            "compute_agent_pin_seconds",
            "Time from the start event of a guest until it is pinned.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
            registry=self.registry,
        )
        self.cache_group_seconds = Histogram(
            "compute_agent_cache_group_seconds",
            "Time from the start of the process of a domain until it was in its resctrl group;"
            " `compute-agent libvirt hook install` makes it short.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
            registry=self.registry,
        )

    def show_guests(self, entries: Sequence[CachedGuest], views: Sequence[GuestView]) -> None:
        """Set the metrics that count guests, such as guests without an allocation.

        :param entries: all guests in the cache.
        :param views: present copies of these guests.
        """
        self.guests.set(len(entries))
        # An empty allocation is an answer of Placement. The allocation None means that there was no answer.
        # The next lines count such guests as unknown.
        self.unallocated_guests.set(sum(entry.allocation == {} for entry in entries))
        self.unknown_guests.set(sum(entry.allocation is None for entry in entries))
        self.migrating_guests.set(sum(entry.migration is not None for entry in entries))
        self.refused_guests.set(sum(bool(entry.refusal) for entry in entries))
        self.preserved_guests.set(sum(entry.guest.settings.preserve for entry in entries))
        self.stray_guests.set(sum(bool(entry.stray) for entry in entries))
        self.remote_memory_guests.set(sum(bool(view.remote_memory) for view in views))
