"""What the methods on the socket need of the agent."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from oslo_config import cfg

from compute_agent.daemon import release
from compute_agent.daemon.maintenance import MaintenanceMode
from compute_agent.drivers.base import GuestDriver
from compute_agent.loops.announcements import PreStartHook
from compute_agent.loops.audit import AuditOutcome
from compute_agent.loops.reporting import ReportLoop
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.audit import HealOptions
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import Ownership


class AgentParts(Protocol):
    """What the methods need of the agent."""

    @property
    def options(self) -> cfg.ConfigOpts:
        """The configuration that the agent works by."""
        ...

    @property
    def pipeline(self) -> GuestPipeline:
        """The guests and the worker."""
        ...

    @property
    def driver(self) -> GuestDriver:
        """What runs the guests."""
        ...

    @property
    def client(self) -> PlacementClient:
        """The way to Placement."""
        ...

    @property
    def owned(self) -> Ownership:
        """What the agent put into Placement, as far as it remembers."""
        ...

    @property
    def reports(self) -> ReportLoop:
        """What tells Placement of this host."""
        ...

    @property
    def announcements(self) -> PreStartHook:
        """What hears of guests that are about to start."""
        ...

    @property
    def maintenance(self) -> MaintenanceMode:
        """The operator's switch for new guests."""
        ...

    def status(self) -> dict[str, Any]:
        """The agent's state in a few words."""
        ...

    def resctrl_groups(self) -> list[dict[str, Any]]:
        """All resctrl groups.

        :raises RequestError:
        :raises ResctrlError:
        :raises BadSchemataError:
        """
        ...

    def watermarks(self) -> list[dict[str, Any]]:
        """The watermarks, and how usage stands to them."""
        ...

    def capacity(self) -> list[dict[str, Any]]:
        """What others leave unused of the shared CPUs, term by term."""
        ...

    def interference(self) -> list[dict[str, Any]]:
        """Who is limited for whom, and what is remembered of others."""
        ...

    def audit(self, options: HealOptions) -> list[AuditOutcome]:
        """Compare guests and allocations, and mend them as asked for.

        :raises PlacementError:
        :raises DriverError:
        """
        ...

    def survey_release(self, options: release.ReleaseOptions) -> list[release.ReleaseRow]:
        """What there is to give back when this host is left."""
        ...

    def retire(self) -> None:
        """End the agent."""
        ...

    def blockio_classes(self) -> Collection[str]:
        """The names of the classes of block I/O that guests may have."""
        ...

    def qos_classes(self) -> Collection[str]:
        """The names of the classes that guests may have."""
        ...
