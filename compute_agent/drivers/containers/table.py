"""The table of containers that are guests, by the id of the container.

The agent reads a container when the engine reports an event of the container, and when a list of containers
shows it for the first time. The labels of a container never change, so the agent does not read a running
guest again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestChange
from compute_agent.drivers.containers.container_state import (
    GUEST,
    KUBERNETES,
    ContainerRun,
    ContainerState,
    PodRun,
    own_group,
    parse_labels,
    parse_run,
    trusted_labels,
)
from compute_agent.drivers.containers.engine import ContainerEngine, EngineError
from compute_agent.drivers.foreign.declared import (
    BadDeclarationError,
    DeclaredSettings,
    made_uuid,
    matches_any,
)
from compute_agent.drivers.foreign.records import ValueRecord, ValueRecords
from compute_agent.drivers.foreign.table import (
    GuestEntry,
    GuestTable,
    SubjectFinding,
    UnfitSubjectError,
    group_members,
)
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import SettingSource
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

CONTAINER: Final = "container"
"""The key in a guest's details for the id of its container; for a pod, the id of its infra container."""

POD: Final = "pod"
"""The key in a guest's details for the id of its pod. Only a guest that is a whole pod has this key."""

STUCK_SECONDS: Final = 60.0
"""Seconds until the agent reads a container again, after the engine gave no answer about this container
alone."""

# The maximum number of containers that a message about one pod names.
_MAX_NAMES: Final = 20


class ContainerTable(GuestTable):
    """The containers that are guests, by id, and the containers that cannot be managed."""

    def __init__(
        self,
        driver: str,
        engine: ContainerEngine,
        host: str,
        groups: Path,
        report: Callable[[GuestChange], None],
        records: ValueRecords,
        guest_names: Collection[str] = (),
        whole_pods: bool = False,
    ) -> None:
        """Begin without guests; see :class:`~compute_agent.drivers.containers.driver.ContainerDriver`."""
        super().__init__(driver, host, groups, report)
        self._guest_names = guest_names
        self._whole_pods = whole_pods
        self._engine = engine
        self._records = records
        # Only the thread of the table changes these attributes.
        self._members: dict[str, dict[str, str]] = {}
        """The running containers of each pod, by the id of the pod and of the container. The text is the name
        of the container if it is outside of the pod's group, and otherwise empty.
        """
        self._unread: dict[str, str] = {}
        """The containers that must be read again, by key: the reason why the engine refused to read them."""
        self._has_list = True
        """Whether the engine has given the last list."""
        self._stuck_until: dict[str, float] = {}
        """The containers about which the engine gave no answer in time, by key: when the agent asks again, in
        seconds of the monotonic clock."""

    def is_managed(self, record: ValueRecord) -> bool:
        """Whether the run of a record still continues, and the container of the run is still a guest."""
        with self._lock:
            entry = self._by_uuid.get(record.guest_uuid)
        if entry is None or not entry.was_alive:
            return False
        return record.run == str(run_of(entry.guest, entry.main, self._groups))

    def may_return(self, key: str, guest_uuid: str) -> bool:
        """Whether the container exists, and its next run would have this uuid if the name stays the same."""
        try:
            container = self._find_subject(self._engine.read_container(key))
            if container is None:
                return False
            settings = self._settings_of(container)
        except (ValueError, BadDeclarationError) as error:
            raise DriverError(f"the state of container {key[:12]} is not known: {error}") from error
        return settings is not None and self._uuid_of(container, settings) == guest_uuid

    def _find_subject(self, container: ContainerState | None) -> ContainerState | None:
        """The container, or its pod if the pod is the guest; None if the container cannot be a guest itself.

        The infra container, which has the labels of its pod, represents the pod. The infra container alone is
        no guest. A container outside of the group of its pod counts as a guest of its own. A container that
        does not run counts, too, because its group is not known before it runs.

        :raises ValueError: the answer about the pod cannot be used.
        """
        if container is None or not container.pod:
            return container
        pod = self._engine.read_pod(container.pod) if self._whole_pods else None
        if pod is not None:
            # A pod has no image, so no label of a pod comes from an image.
            subject = replace(
                container, name=pod.name, labels=pod.labels, image="", is_pod=True, members=pod.running
            )
            try:
                is_guest = self._settings_of(subject) is not None
            except BadDeclarationError:
                is_guest = True
            if is_guest:
                if container.is_infra:
                    return subject
                return None if self._is_inside(container) else container
        if not container.is_infra:
            return container
        if GUEST in container.labels and not self._whole_pods:
            LOG.info(
                "Container %s is no guest: it is the infra container of a pod with the label %s, and [podman]"
                " pods is container",
                container.name,
                GUEST,
            )
        return None

    def _is_inside(self, container: ContainerState) -> bool | None:
        """Whether a container is in the group of its pod; None if it does not run."""
        # The path is empty if the process has ended, and the engine has not noticed its end yet.
        path = procfs.cgroup_path(container.pid) if container.pid else ""
        return bool(own_group(path, container.pod)) if path else None

    def _find_outsiders(self, pod: ContainerState) -> list[str]:
        """The names of running containers outside of their pod's group; each is logged when it is new."""
        before, now = self._members.get(pod.pod, {}), dict[str, str]()
        for key in pod.members:
            if key in before:
                now[key] = before[key]
                continue
            try:
                member = self._engine.read_container(key)
            except (ValueError, EngineError):
                # The container may no longer exist. If it exists, the next round reads it again.
                continue
            if member is not None and (is_inside := self._is_inside(member)) is not None:
                now[key] = "" if is_inside else member.name
                if now[key]:
                    LOG.warning(
                        "Container %s is not in the control group of its pod %s, so the pod's CPUs and"
                        " limits do not apply to the container: set CgroupsMode=no-conmon in the quadlet of"
                        " the container",
                        member.name,
                        pod.name,
                    )
        self._members[pod.pod] = now
        return sorted(filter(None, now.values()))

    def _settings_of(self, container: ContainerState) -> DeclaredSettings | None:
        """See :func:`parse_labels`."""
        is_chosen = matches_any(container.name, self._guest_names)
        return parse_labels(container.labels, self._labels_of_image(container), is_chosen)

    def _uuid_of(self, container: ContainerState, settings: DeclaredSettings) -> str:
        return settings.guest_uuid or made_uuid(self._host, self._driver, container.name)

    def _find_suspects(self, everything: bool) -> Collection[str]:
        with self._lock:
            entries = dict(self._entries)
        try:
            self._refuse_kubernetes()
            found = self._engine.list_containers("" if self._guest_names else GUEST)
            listed, self._has_list = {container.key for container in found}, True
        except EngineError as error:
            # Without a first list, guests of an earlier agent would count as gone.
            if not error.is_stuck or not self._complete:
                raise
            if self._has_list:
                LOG.error(
                    "The agent finds no containers that have started without an event, because it cannot list"
                    " containers: %s",
                    error,
                )
            self._has_list = False
            listed = entries.keys() | self._others | self._unread.keys()
        self._others &= listed
        self._unread = {key: text for key, text in self._unread.items() if key in listed or key in entries}
        self._stuck_until = {key: until for key, until in self._stuck_until.items() if key in self._unread}
        if everything:
            # The list lacks containers that are stopping, which an earlier agent may have limited.
            for record in self._records.all_records():
                with contextlib.suppress(ValueError):
                    listed |= self._find_containers(parse_run(record.run))
        pods = {entry.guest.details[POD] for entry in entries.values() if POD in entry.guest.details}
        self._members = {pod: members for pod, members in self._members.items() if pod in pods}
        # Pods are always read again, because a container without the label can join a pod without an event.
        steady = {
            key
            for key, entry in entries.items()
            if key in listed and POD not in entry.guest.details and entry.is_alive
        } - self._unread.keys()
        return (listed | entries.keys()) - steady - self._others

    def _find_containers(self, run: ContainerRun | PodRun) -> set[str]:
        """The ids of containers that perhaps still belong to a run of an earlier agent.

        For a pod, these are the containers with processes. The infra container, which represents the pod, is
        one of them.
        """
        if isinstance(run, ContainerRun):
            return {run.key}
        try:
            pod = self._engine.read_pod(run.key)
        except (ValueError, EngineError) as error:
            LOG.warning("Pod %s cannot be read: %s", run.key[:12], error)
            return set()
        return set() if pod is None else set(pod.running)

    def _refuse_kubernetes(self) -> None:
        """Refuse to manage containers of an engine that runs containers of the kubelet.

        :raises DriverError: the kubelet manages a container of this host.
        """
        for container in self._engine.list_containers(KUBERNETES):
            try:
                labels = trusted_labels(container.labels, self._labels_of_image(container))
            except EngineError:
                # The container and its image may have been removed since the list was made. The next list
                # shows this.
                continue
            if KUBERNETES in labels:
                raise DriverError(
                    f"this is a node of Kubernetes (container {container.key[:12]} has the label"
                    f" {KUBERNETES}), and the kubelet manages its containers: remove {self._driver} from"
                    " [guests] drivers"
                )

    def _labels_of_image(self, container: ContainerState) -> Mapping[str, str]:
        # If the image is gone, its labels are not known. So all labels of the container count as labels of
        # the image.
        found = self._engine.read_image_labels(container.image) if container.image else {}
        return container.labels if found is None else found

    def _look_closely(self, key: str) -> SubjectFinding:
        # The engine is not asked, because each call without an answer would delay other calls by its time
        # limit.
        if time.monotonic() < self._stuck_until.get(key, 0.0):
            return self._find_unread(key)
        self._stuck_until.pop(key, None)
        try:
            found = self._look_at_container(key)
        except EngineError as error:
            # An error does not mean that the container exists: if it vanishes during the call, Podman answers
            # with 500 and not 404.
            if self._unread.get(key) != str(error):
                LOG.warning("Container %s cannot be read, and the agent tries again: %s", key[:12], error)
            self._unread[key] = str(error)
            if error.is_stuck:
                self._stuck_until[key] = time.monotonic() + STUCK_SECONDS
            return self._find_unread(key)
        self._unread.pop(key, None)
        return found

    def _find_unread(self, key: str) -> SubjectFinding:
        """The last finding about a container that cannot be read now."""
        with self._lock:
            entry, unmanaged = self._entries.get(key), self._unmanaged.get(key)
        alive = entry if entry is not None and entry.is_alive else None
        return SubjectFinding(alive, alive.guest.uuid if alive is not None else "", unmanaged)

    def _look_at_container(self, key: str) -> SubjectFinding:
        try:
            found = self._engine.read_container(key)
            if found is None or not found.pid:
                return SubjectFinding()
            container = self._find_subject(found)
        except ValueError as error:
            LOG.warning("The agent ignores container %s: %s", key[:12], error)
            return SubjectFinding(is_other=True)
        if container is None:
            return SubjectFinding(is_other=True)
        guest_uuid = made_uuid(self._host, self._driver, container.name)
        try:
            settings = self._settings_of(container)
            if settings is None:
                return SubjectFinding(is_other=True)
            guest_uuid = self._uuid_of(container, settings)
            return self._find_entry(container, guest_uuid, settings)
        except (BadDeclarationError, UnfitSubjectError) as error:
            subject = f"{container.subject_kind} {container.name}"
            return SubjectFinding.from_refusal(guest_uuid, subject, error)

    def _find_entry(
        self, container: ContainerState, guest_uuid: str, settings: DeclaredSettings
    ) -> SubjectFinding:
        main = procfs.identify_process(container.pid)
        path = procfs.cgroup_path(container.pid)
        # The process has ended since the engine answered.
        if main is None or procfs.identify_process(container.pid) != main:
            return SubjectFinding()
        if not settings.guest_uuid:
            guest_uuid = self._uuid_of_run(ContainerRun(main, container.key)) or guest_uuid
        self._refuse_namesake(
            container.key, guest_uuid, container.subject_kind, "the label compute-agent.uuid"
        )
        group = own_group(path, container.pod if container.is_pod else container.key)
        if not group:
            raise UnfitSubjectError(f"it has no control group of its own (its process is in {path or '/'})")
        folder = self._groups / group.strip("/")
        if main.pid not in group_members(self._groups, folder, main.pid):
            raise UnfitSubjectError("its main process is not in its control group of version 2")
        self._refuse_shared_group(container.key, folder)
        problems = settings.problems
        if container.is_pod and (outsiders := self._find_outsiders(container)):
            names = ", ".join(outsiders[:_MAX_NAMES])
            problems = (
                *problems,
                f"these containers are not in the control group of the pod: {names}; set"
                " CgroupsMode=no-conmon in their quadlets",
            )
        guest = Guest(
            guest_uuid,
            self._driver,
            container.name,
            main.pid,
            settings.guest_settings,
            str(folder),
            {CONTAINER: container.key, **({POD: container.pod} if container.is_pod else {})},
            declared=settings.declared,
            declared_by=SettingSource.LABEL,
            declared_problems=problems,
        )
        return SubjectFinding(GuestEntry(guest, main, settings.memory_mb), guest_uuid)

    def _refuse_shared_group(self, key: str, folder: Path) -> None:
        """Refuse a group that contains another guest's group, or is below another guest's group.

        :raises UnfitSubjectError: two guests would share processes.
        """
        with self._lock:
            others = [entry for other, entry in self._entries.items() if other != key]
        for entry in others:
            other = entry.own_group.folder
            if (folder.is_relative_to(other) or other.is_relative_to(folder)) and entry.is_alive:
                raise UnfitSubjectError(
                    f"its control group and that of guest {entry.guest.name} contain the same processes:"
                    " start one of the two without --cgroup-parent"
                )

    def _uuid_of_run(self, run: ContainerRun) -> str:
        """The uuid that a container already has in this run, under its present name or a former name.

        The result is empty if the container has no uuid yet.
        """
        with self._lock:
            entry = self._entries.get(run.key)
        if entry is not None and entry.main == run.main:
            return entry.guest.uuid
        return self._records.uuid_of_run(str(run))


def run_of(guest: Guest, main: ProcessIdentity, groups: Path) -> ContainerRun | PodRun:
    """The run of a container or pod that is a guest.

    :param main: the main process of the guest.
    :param groups: the root of all control groups.
    """
    if pod := guest.details.get(POD):
        return PodRun(pod, f"/{Path(guest.cgroup).relative_to(groups)}")
    return ContainerRun(main, guest.details[CONTAINER])
