"""The methods that the agent serves on its UNIX socket."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from compute_agent.agent import release
from compute_agent.agent.assembly import AssembledAgent
from compute_agent.agent.documents import (
    agent_document,
    device_document,
    group_documents,
    guest_document,
    holder_document,
    loss_document,
    move_document,
    origin_document,
    provider_document,
    rehearsal_rows,
    reshape_document,
    watermark_rows,
)
from compute_agent.agent.guest_settings import ANSWER_SECONDS, input_document
from compute_agent.agent.parameters import (
    AdoptSchema,
    AnnounceSchema,
    AuditSchema,
    DisableSchema,
    EmptySchema,
    GuestSchema,
    LimitSchema,
    MoveSchema,
    ReleaseSchema,
    ReshapeSchema,
    RunSchema,
    VerifySchema,
    WatermarkTestSchema,
    load,
)
from compute_agent.agent.protocol import Method, RequestError
from compute_agent.conf.isolation import MOVE
from compute_agent.controllers.base import find_controller
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.loops.audit import HostAuditor, audit_document
from compute_agent.model.guest import Allocation
from compute_agent.model.guest_settings import SETTING_NAMES, GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CPU_CLASSES
from compute_agent.pipeline.events import AdoptGuest, GuestStopped, MoveGuest, StartGuest
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestRefusedError
from compute_agent.report.answers import PlacementError, UnavailableError
from compute_agent.report.audit import HealOptions
from compute_agent.report.history import ConsumerOwner, holder_of
from compute_agent.report.plan import assume_ownership, settled_inventories
from compute_agent.report.reporter import HostReporter
from compute_agent.report.reshape import InfeasibleReshape
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.throttling.watermarks.plan import rehearse_usage

ENDING_SECONDS: Final = 0.1
"""The seconds that guest.run waits for an early end of the command, so that its answer can report the end.

Most commands that cannot work end within this time. This wait makes each start longer.
"""


LOG = logging.getLogger(__name__)

ANNOUNCE_SECONDS: Final = 2.0
"""The seconds for which the libvirt hook waits for the cache group; then the guest starts without the
group.
"""

ROOT_SECONDS: Final = 10.0
"""The seconds that the start or adoption of a guest waits until the agent knows this host's root provider."""

_BUSY: Final = f"the agent is busy: no answer within {ANSWER_SECONDS} s"

OPEN_METHODS: Final = frozenset(
    {
        *("capacity.show", "cpu.holders", "device.list"),
        *("guest.list", "guest.show", "guest.verify", "interference.list"),
        *("inventory", "resctrl.groups", "status", "watermark.list", "watermark.test"),
    }
)
"""The methods for all users with access to the socket. These methods change nothing."""


class ApiMethods:
    """The methods of the UNIX socket, bound to one agent. Any thread may call these methods."""

    def __init__(self, agent: AssembledAgent, end_agent: Callable[[], None]) -> None:
        """``end_agent`` has the main thread end the agent, and returns before the end."""
        self._agent = agent
        self._end_agent = end_agent

    def list_methods(self) -> Mapping[str, Method]:
        """The methods of this class, by their name in requests."""
        return {
            "status": self.status,
            "guest.list": self.guest_list,
            "guest.show": self.guest_show,
            "guest.verify": self.guest_verify,
            "guest.inputs": self.guest_inputs,
            "cpu.holders": self.cpu_holders,
            "device.list": self.device_list,
            "guest.run": self.guest_run,
            "guest.adopt": self.guest_adopt,
            "guest.announce": self.guest_announce,
            "guest.set": self.guest_set,
            "guest.limit": self.guest_limit,
            "guest.evict": self.guest_evict,
            "guest.move": self.guest_move,
            "guest.stop": self.guest_stop,
            "inventory": self.inventory,
            "reshape": self.reshape,
            "resctrl.groups": self.resctrl_groups,
            "audit": self.audit,
            "allocations.accept": self.allocations_accept,
            "watermark.list": self.watermark_list,
            "watermark.test": self.watermark_test,
            "capacity.show": self.capacity_show,
            "interference.list": self.interference_list,
            "host.disable": self.host_disable,
            "host.enable": self.host_enable,
            "release.survey": self.release_survey,
            "release.retire": self.release_retire,
        }

    def status(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Show the agent's state, and the problems that the agent knows."""
        load(EmptySchema(), params)
        return agent_document(self._agent)

    def guest_list(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List all guests."""
        load(EmptySchema(), params)
        return [self._guest_document(view) for view in self._agent.configurator.list_views()]

    def guest_show(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Show one guest, by uuid or name."""
        return self._guest_document(self._agent.configurator.find_guest(load(GuestSchema(), params)["guest"]))

    def guest_verify(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Compare the promises to one guest or to all guests with the kernel, and list the verdicts."""
        wanted = load(VerifySchema(), params).get("guest")
        uuid = None if wanted is None else self._agent.configurator.find_guest(wanted).guest.uuid
        return [asdict(one) for one in self._agent.verifier.verify_all() if uuid in (None, one.guest)]

    def cpu_holders(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List the guests with dedicated CPUs, their isolation levels and the threads of their guest CPUs."""
        load(EmptySchema(), params)
        return [holder_document(one) for one in self._agent.noise.list_holders()]

    def device_list(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List the PCI devices that the host offers, with the guests that hold them."""
        load(EmptySchema(), params)
        return [device_document(one) for one in self._agent.devices.list_uses()]

    def guest_inputs(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List the values from which each guest's settings follow, for a check of another configuration."""
        load(EmptySchema(), params)
        return [input_document(one) for one in self._agent.pipeline.resolution_inputs()]

    def guest_run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Start a process as the guest of a consumer, on the resources of the consumer's allocation."""
        body = self._agent.configurator.load_settings(RunSchema(), params)
        guest_uuid, as_of, allocation, owner = self._read_allocation(body)
        event = StartGuest(
            uuid=guest_uuid,
            name=body.get("name", guest_uuid),
            settings=_guest_settings(body, allocation),
            command=tuple(body["command"]),
            allocation=allocation,
            as_of=as_of,
            cwd=body["cwd"],
            environment=body["environment"],
            declared=_declared_guest(params),
            owner=owner,
        )
        view = self._begin_guest(event)
        starting = self._agent.driver.starting_driver
        ending = "" if starting is None else starting.recent_ending(view.guest, ENDING_SECONDS)
        return {**self._guest_document(view), **({"ended": ending} if ending else {})}

    def guest_adopt(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Adopt a running process, or all processes of a cgroup, as the guest of a consumer."""
        body = self._agent.configurator.load_settings(AdoptSchema(), params)
        guest_uuid, as_of, allocation, owner = self._read_allocation(body)
        event = AdoptGuest(
            uuid=guest_uuid,
            name=body.get("name", guest_uuid),
            settings=_guest_settings(body, allocation),
            origin=body["pid"] if "pid" in body else Path(body["cgroup"]),
            allocation=allocation,
            as_of=as_of,
            declared=_declared_guest(params),
            owner=owner,
        )
        return self._guest_document(self._begin_guest(event))

    def guest_announce(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Make the cache group of a guest that starts soon; the libvirt hook waits for the answer."""
        description = load(AnnounceSchema(), params)["description"]
        try:
            guest = self._agent.announcements.announce_guest(description, ANNOUNCE_SECONDS)
        except (ValueError, DriverError) as error:
            raise RequestError(f"the starting guest cannot be announced: {error}") from error
        except FutureTimeoutError as error:
            raise RequestError(f"the agent is busy: not done within {ANNOUNCE_SECONDS} s") from error
        return {"uuid": guest.uuid, "name": guest.name}

    def guest_set(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Set and unset settings of a running guest. The changes are in effect when the method answers."""
        with _refuse_request():
            guest = self._agent.configurator.change_guest(params)
        return self._guest_document(self._agent.configurator.find_guest(guest.uuid))

    def guest_limit(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Limit the CPU use of a guest, or remove the limit.

        The method answers after the change is in effect.
        """
        body = load(LimitSchema(), params)
        guest = self._agent.configurator.find_guest(body["guest"]).guest
        with _refuse_request():
            self._agent.manual_throttling.limit_cpus(guest, body["cpus"])
        return self._guest_document(self._agent.configurator.find_guest(guest.uuid))

    def guest_evict(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Start the eviction of a guest, as a watermark does; an event records the outcome."""
        guest = self._agent.configurator.find_guest(load(GuestSchema(), params)["guest"]).guest
        self._agent.manual_throttling.evict_guest(guest)
        return {"uuid": guest.uuid, "name": guest.name}

    def guest_move(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Move a guest into the configured CPU sets, or only report its new CPUs."""
        body = load(MoveSchema(), params)
        view = self._agent.configurator.find_guest(body["guest"])
        moving = MoveGuest(view.guest.uuid, body["dry_run"])
        with _refuse_request(
            GuestRefusedError, DriverError, intro=f"guest {view.guest.uuid} cannot be moved: "
        ):
            place = self._agent.pipeline.submit(moving).result(ANSWER_SECONDS)
        if body["dry_run"]:
            return move_document(view, place, "would be moved")
        pending = self._agent.configurator.find_guest(view.guest.uuid).pending
        return move_document(view, place, f"not in effect yet: {', '.join(pending)}" if pending else "moved")

    def guest_stop(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Stop a guest. Its allocation stays, unless the agent itself has claimed it for the guest."""
        guest = self._agent.configurator.find_guest(load(GuestSchema(), params)["guest"]).guest
        with _refuse_request(DriverError):
            self._agent.driver.stop(guest, float(self._agent.options.guests.stop_timeout))
        # The driver's own event comes later, but the client's next request must not list the guest any more.
        gone = self._agent.pipeline.submit(GuestStopped(guest))
        # The request has succeeded even if a busy worker handles the event later: the guest has ended.
        with suppress(FutureTimeoutError):
            gone.result(ANSWER_SECONDS)
        return {"uuid": guest.uuid, "name": guest.name}

    def inventory(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Show two provider trees: the tree that the agent derives, and the tree in Placement."""
        load(EmptySchema(), params)
        tree = self._agent.reports.offered_tree
        # A new reader is made, because only the thread of the reports may use the reader of the reports.
        known = self._agent.state.state.owned
        reader = HostReporter(self._agent.client, known, lambda owned: None)
        with _refuse_request(PlacementError):
            reported = reader.read_reported(tree.root.uuid)
            tree = reader.reportable_tree(tree, reported)
        owned = assume_ownership(tree, reported, known)
        return {
            "set_by": {
                node.uuid: {
                    name: origin_document(settled)
                    for name, settled in settled_inventories(tree, node, reported, owned).items()
                }
                for node in tree.nodes
            },
            "derived": {
                node.uuid: provider_document(node.name, node.parent, node.inventories, node.traits)
                for node in tree.nodes
            },
            "reported": {
                provider.uuid: provider_document(
                    provider.name, provider.parent, provider.inventories, provider.traits
                )
                for provider in reported.values()
            },
        }

    def reshape(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Move allocations to the providers of the current provider tree, or only list the moves."""
        with _refuse_request(PlacementError, DriverError):
            planned = self._agent.reports.reshape(load(ReshapeSchema(), params)["dry_run"])
        if isinstance(planned, InfeasibleReshape):
            raise RequestError(f"the reshape is not possible: {planned.reason}")
        return reshape_document(planned, self._zone_names())

    def resctrl_groups(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List all resctrl groups, including those of other programs."""
        load(EmptySchema(), params)
        controller = find_controller(self._agent.in_force.controllers, ResctrlController)
        if controller is None:
            raise RequestError(f"cache and bandwidth control is off: {self._agent.reloader.resctrl.off}")
        with _refuse_request(ResctrlError, BadSchemataError):
            return group_documents(controller, self._agent.pipeline.guest_views())

    def audit(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Compare guests with allocations, and repair the differences that the request selects."""
        body = load(AuditSchema(), params)
        confirmed = body["confirmed"]
        options = HealOptions(
            heal=body["heal"],
            delete=body["delete"],
            confirmed=None if confirmed is None else frozenset(confirmed),
            dry_run=body["dry_run"],
            min_age=body["min_age"],
            consumers=frozenset(body["consumers"]),
        )
        agent, conf = self._agent, self._agent.options
        auditor = HostAuditor(
            agent.pipeline,
            agent.driver,
            agent.client,
            agent.reports.wake,
            agent.recorder,
            agent.reports.history.known_owners,
            moves_emulator=conf.isolation.emulator == MOVE,
            root=Path(conf.host.root),
            claimed=agent.guest_claims.claimed_guests(),
        )
        with _refuse_request(PlacementError, DriverError):
            outcomes = auditor.run_audit(options)
        return audit_document(outcomes, self._zone_names())

    def allocations_accept(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Accept the allocations of a restored database; return the guests that have lost amounts."""
        load(EmptySchema(), params)
        with _refuse_request(PlacementError, DriverError, OSError):
            losses = self._agent.reports.accept_allocations()
        names = self._zone_names()
        return [loss_document(loss, names) for loss in losses]

    def watermark_list(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List all watermarks with the measured usage."""
        load(EmptySchema(), params)
        return watermark_rows(self._agent.watermarks.status)

    def watermark_test(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Predict the actions that the watermarks of a metric would take at an assumed usage."""
        body = load(WatermarkTestSchema(), params)
        status = self._agent.watermarks.status
        if status.snapshot is None:
            raise RequestError("nothing was measured so far: try again in a second")
        names = {view.guest.uuid: view.guest.name for view in self._agent.pipeline.guest_views()}
        with _refuse_request(ValueError):
            actions = rehearse_usage(
                status.rules, status.snapshot, status.state, body["metric"], body["usage"]
            )
        return rehearsal_rows(actions, names)

    def interference_list(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Show the limited guests, the guests that these limits protect, and the stored verdicts."""
        load(EmptySchema(), params)
        return self._agent.interference.list_rows()

    def capacity_show(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Show how the offers of unused CPUs and memory, and the withheld amounts, are computed."""
        load(EmptySchema(), params)
        return self._agent.reclaimed.list_rows(self._agent.reports.status.not_offered.withheld)

    def host_disable(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Keep new guests away from this host, until ``host.enable`` is called."""
        return self._agent.maintenance.switch_host(True, load(DisableSchema(), params)["reason"])

    def host_enable(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Let new guests come to this host again."""
        load(EmptySchema(), params)
        return self._agent.maintenance.switch_host(False)

    def release_survey(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List all settings that a release of this host would undo."""
        agent, options = self._agent, release.ReleaseOptions(**load(ReleaseSchema(), params))
        rows = release.survey_host(
            agent.pipeline.host_state,
            agent.driver,
            agent.reloader.resctrl.control,
            agent.client,
            agent.state,
            agent.throttling,
            options,
            Path(agent.options.host.root),
        )
        return [asdict(row) for row in rows]

    def release_retire(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Keep new guests away, and end the agent, so that the host can be released."""
        load(EmptySchema(), params)
        # New guests are kept away first, because a host without an agent would not serve their claims.
        self._agent.maintenance.prepare_release()
        self._end_agent()
        return {}

    def _read_allocation(
        self, body: Mapping[str, Any]
    ) -> tuple[str, float, Allocation, ConsumerOwner | None]:
        guest_uuid = str(body.get("uuid") or uuid.uuid4())
        # The time is read before the request, so the allocation in the answer is not older than this time.
        as_of, owner = time.monotonic(), None
        try:
            record = self._agent.client.get_allocations(guest_uuid)
            resources, owner = record.resources, holder_of(record)
        except UnavailableError as error:
            known = self._agent.pipeline.unclaimed_holdings.get(guest_uuid)
            if known is None:
                raise RequestError(f"the allocation of guest {guest_uuid} cannot be read: {error}") from error
            LOG.warning(
                "Guest %s gets its last known allocation, because Placement does not answer: %s",
                guest_uuid,
                error,
            )
            as_of, resources = 0.0, known.allocation  # so each later answer of Placement counts as newer
        except PlacementError as error:
            raise RequestError(f"the allocation of guest {guest_uuid} cannot be read: {error}") from error
        if not self._agent.pipeline.host_state.root_known:
            self._agent.reports.wait_for_first(ROOT_SECONDS)  # the first report finds the root provider
        # The host state is read again, because the first report may have replaced it.
        host_state = self._agent.pipeline.host_state
        if not host_state.root_known:
            raise RequestError(
                f"the agent cannot use the allocation of guest {guest_uuid} before it knows the root"
                " provider of this host: see compute-agent status"
            )
        return guest_uuid, as_of, host_state.own_part(resources), owner

    def _zone_names(self) -> dict[str, str]:
        """The names of this host's providers, by uuid."""
        return {zone.uuid: zone.name for zone in self._agent.pipeline.host_state.all_zones}

    def _guest_document(self, view: GuestView) -> dict[str, Any]:
        claim_expires = self._agent.reports.claims.claim_end(view.guest.uuid)
        return guest_document(view, self._agent.pipeline.host_state.policy, claim_expires)

    def _begin_guest(self, event: StartGuest | AdoptGuest) -> GuestView:
        """Start or adopt a guest, and wake the loop of reports, which then reads the guest's allocation."""
        with _refuse_request(GuestRefusedError, DriverError):
            view: GuestView = self._agent.pipeline.submit(event).result(ANSWER_SECONDS)
        self._agent.reports.wake()
        return view


@contextmanager
def _refuse_request(*kinds: type[Exception], intro: str = "") -> Iterator[None]:
    """Replace an error of the given classes, or a timeout of the worker, by a RequestError.

    :param intro: the beginning of the error's text.
    """
    try:
        yield
    # The timeout is caught first, because TimeoutError is an OSError, which ``kinds`` can contain, and has no
    # text.
    except FutureTimeoutError as error:
        raise RequestError(_BUSY) from error
    except kinds as error:
        raise RequestError(f"{intro}{error}") from error


def _guest_settings(body: Mapping[str, Any], allocation: Allocation) -> GuestSettings:
    """The settings of a request. Without ``vcpus``, the guest gets a guest CPU for each held CPU, or one."""
    amount = sum(held.get(name, 0) for held in allocation.values() for name in CPU_CLASSES)
    return GuestSettings(
        vcpus=body.get("vcpus") or max(amount, 1), **{name: body[name] for name in SETTING_NAMES}
    )


def _declared_guest(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the settings that a request contains, including those with default values."""
    return tuple(name for name in SETTING_NAMES if name in params)
