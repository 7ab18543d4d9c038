"""The state of a container, as the engine reports it: its control group, and the settings in its labels.

The module consists of pure functions. Each value is checked, because users of the engine choose some of the
values. The Docker Engine API (v1.24 and later) defines the format, which Podman also uses.

A container has the labels of ``podman run --label`` and the labels of its image. An image can come from
anywhere, but labels decide about CPUs of the host. So a label with the same value as in the image counts as
the image's label, and has no effect. All other labels come from users of the engine's socket, and these users
can become root anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compute_agent.drivers import procfs
from compute_agent.drivers.foreign.declared import (
    BadDeclarationError,
    DeclaredSettings,
    KeyNames,
    parse_declaration,
    read_wish,
)
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest_settings import SETTING_NAMES
from compute_agent.model.messages import printable_text

PREFIX: Final = "compute-agent."
GUEST: Final = f"{PREFIX}guest"
"""The label of containers that are meant to be guests."""

KUBERNETES: Final = "io.kubernetes.pod.uid"
"""The label of containers that the kubelet manages."""

KEYS: Final[Mapping[str, str]] = {
    PREFIX + ("class" if name == "qos_class" else name.replace("_", "-")): name for name in SETTING_NAMES
}
"""The settings of guests by their labels, such as ``compute-agent.class`` for ``qos_class``."""

_KEYS: Final = KeyNames(f"{PREFIX}uuid", f"{PREFIX}vcpus", f"{PREFIX}memory", KEYS, "label")

_MAX_TEXT: Final = 1000


def trusted_labels(labels: Mapping[str, str], image_labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels that a user of the engine has set."""
    return {key: text for key, text in labels.items() if image_labels.get(key) != text}


def parse_labels(
    labels: Mapping[str, str], image_labels: Mapping[str, str], is_chosen: bool = False
) -> DeclaredSettings | None:
    """The settings in the labels of a container; None if the container is not meant to be a guest.

    :param labels: all labels of the container.
    :param is_chosen: whether an option of the agent names the container, so that it is a guest even without
        the label.
    :raises BadDeclarationError: the value of a label cannot be used, and the container cannot be a guest
        without it.
    """
    trusted = {
        key: text for key, text in trusted_labels(labels, image_labels).items() if key.startswith(PREFIX)
    }
    # If an option of the agent chooses the container, the label of the image has no effect.
    if not read_wish(GUEST, trusted.get(GUEST, "true" if is_chosen else labels.get(GUEST, "false"))):
        return None
    if GUEST not in trusted and not is_chosen:
        raise BadDeclarationError(
            f"{GUEST} is a label of its image, which is not trusted, or the image is gone"
        )
    if long := sorted(key for key, text in trusted.items() if len(key) + len(text) > _MAX_TEXT):
        raise BadDeclarationError(
            f"label {printable_text(long[0])[:100]} is longer than {_MAX_TEXT} characters"
        )
    found = parse_declaration({key: text for key, text in trusted.items() if key != GUEST}, _KEYS)
    ignored = sorted(key for key in labels.keys() - trusted.keys() if key.startswith(PREFIX))
    told = [f"label {printable_text(key)[:100]} has no effect: it is of the image" for key in ignored[:20]]
    return replace(found, problems=(*found.problems, *told))


_ID: Final = re.compile(r"[0-9a-f]{64}\Z")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}\Z")
_IMAGE: Final = re.compile(r"(sha256:)?[0-9a-f]{64}\Z")
_RUN: Final = re.compile(r"([0-9]{1,10}) ([0-9]{1,20}) ([0-9a-f]{64})\Z")
_POD_RUN: Final = re.compile(r"pod ([0-9a-f]{64}) (/\S+)\Z")

CHANGES: Final = frozenset(
    {"start", "restart", "die", "died", "stop", "rename", "remove", "destroy", "cleanup"}
)
"""The actions in events after which a container may have become a guest, or may no longer be a guest."""

_WITH_PROCESSES: Final = ("running", "paused", "stopping")
"""The states in which a container has processes. Podman counts only the first one as running, and saves the
last one for the whole time of a stop.
"""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """A container, or a pod with the process of its infra container.

    :ivar pid: the process id of the main process; 0 if the container has no processes.
    :ivar image: the id of the image; empty if the container has no image (``podman run --rootfs``).
    :ivar pod: the id of the pod; empty if the container is in no pod, or if the engine is Docker.
    :ivar is_infra: whether the container is the infra container that the engine adds to each pod.
    :ivar is_pod: whether the object stands for the pod, and so has the name and the labels of the pod.
    :ivar members: the ids of the containers of a pod that have processes.
    """

    key: str
    name: str = ""
    pid: int = 0
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    pod: str = ""
    is_infra: bool = False
    is_pod: bool = False
    members: tuple[str, ...] = ()

    @property
    def subject_kind(self) -> str:
        """The kind of the subject (container or pod), for messages."""
        return "pod" if self.is_pod else "container"


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod of Podman.

    :ivar running: the ids of the containers in the pod that have processes.
    """

    name: str
    labels: Mapping[str, str]
    running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One run of a container: the main process of this run, and the id of the container."""

    main: ProcessIdentity
    key: str

    def __str__(self) -> str:
        return f"{self.main.pid} {self.main.start_time} {self.key}"


@dataclass(frozen=True, slots=True)
class PodRun:
    """The runs of a pod. All runs use one control group, which stays when the pod stops.

    :ivar group: the path of the control group, in which the id of the pod occurs.
    """

    key: str
    group: str

    def __str__(self) -> str:
        return f"pod {self.key} {self.group}"


def parse_run(text: str) -> ContainerRun | PodRun:
    """Parse a run of the present boot from the text of a :class:`ContainerRun` or :class:`PodRun`.

    :raises ValueError: the text is not a run.
    """
    pod = _POD_RUN.match(text)
    if pod is not None and own_group(pod[2], pod[1]) == pod[2]:
        return PodRun(pod[1], pod[2])
    match = _RUN.match(text)
    if match is None:
        raise ValueError(f"{text[:100]!r} is not the run of a container")
    return ContainerRun(ProcessIdentity(int(match[1]), int(match[2]), procfs.boot_id()), match[3])


def parse_list(document: Any) -> list[ContainerState]:
    """Parse the containers in the answer of ``GET /containers/json``. Names and processes are left out.

    :raises ValueError: the answer is not a list of containers.
    """
    if not isinstance(document, list):
        raise ValueError("it is not a list")
    return [
        ContainerState(
            _matching_text(row, "Id", _ID), image=_parse_image(row, "ImageID"), labels=_labels_of(row)
        )
        for row in document
    ]


def parse_container(document: Any) -> ContainerState:
    """Parse the container in the answer of ``GET /containers/ID/json`` or ``GET /libpod/containers/ID/json``.

    :raises ValueError: a part is missing or differs from the documented API.
    """
    state = _typed_member(document, "State", dict)
    pid = _typed_member(state, "Pid", int)
    # True is an int, too.
    if not 0 <= pid < 1 << 32 or isinstance(pid, bool):
        raise ValueError(f"Pid cannot be {pid!r}")
    return ContainerState(
        _matching_text(document, "Id", _ID),
        _parse_name(document),
        pid if _typed_member(state, "Running", bool) or state.get("Status") in _WITH_PROCESSES else 0,
        _parse_image(document, "Image"),
        _labels_of(_typed_member(document, "Config", dict)),
        _matching_text(document, "Pod", _ID) if document.get("Pod") else "",
        document.get("IsInfra") is True,
    )


def parse_pod(document: Any) -> PodState:
    """Parse the pod in the answer of ``GET /libpod/pods/ID/json``.

    :raises ValueError: a part is missing or differs from the documented API.
    """
    name = _parse_name(document)
    # The engine sends null for a pod without containers.
    rows = _typed_member(document, "Containers", list) if document.get("Containers") else []
    running = (row for row in rows if _typed_member(row, "State", str) in _WITH_PROCESSES)
    return PodState(name, _labels_of(document), tuple(_matching_text(row, "Id", _ID) for row in running))


def parse_image_labels(document: Any) -> Mapping[str, str]:
    """Parse the labels in the answer of ``GET /images/ID/json``.

    :raises ValueError: the answer is not an image.
    """
    found = document.get("Config") if isinstance(document, dict) else None
    # The engine sends null for an image without any configuration.
    return {} if found is None else _labels_of(found)


def changed_key(line: bytes) -> str | None:
    """The id of the container that an event is about; None if the event changes no guest.

    :raises ValueError: the line is not an event.
    """
    try:
        event = json.loads(line)
    except RecursionError as error:
        raise ValueError("the event is nested too deeply") from error
    if not isinstance(event, dict):
        raise ValueError("the event is not an object")
    if event.get("Type") != "container" or event.get("Action") not in CHANGES:
        return None
    return _matching_text(_typed_member(event, "Actor", dict), "ID", _ID)


def own_group(path: str, key: str) -> str:
    """The group of a container or pod, from the group of its main process; empty if it has no own group.

    Examples are ``/machine.slice/libpod-ID.scope``, ``/system.slice/docker-ID.scope`` and
    ``/machine.slice/machine-libpod_pod_ID.slice``. The main process can be in a group below, which the
    container runtime or a systemd in the container has made.

    :param path: the group of the main process.
    :param key: the id of the container or pod.
    """
    parts = path.split("/")
    # The kernel shows a group outside of the reader's cgroup namespace with "..".
    if parts[0] != "" or ".." in parts:
        return ""
    at = next((at for at, part in enumerate(parts) if key in part), 0)
    return "/".join(parts[: at + 1]) if at else ""


def _typed_member(document: Any, name: str, kind: type[Any]) -> Any:
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"{name} is not of type {kind.__name__}")
    return value


def _matching_text(document: Any, name: str, pattern: re.Pattern[str]) -> str:
    value = _typed_member(document, name, str)
    if not pattern.match(value):
        raise ValueError(f"{name} cannot be {printable_text(value)[:100]!r}")
    return str(value)


def _parse_name(document: Any) -> str:
    name = _typed_member(document, "Name", str).removeprefix("/")
    if not _NAME.match(name):
        raise ValueError(f"{printable_text(name)[:300]!r} is not the name of a container or pod")
    return str(name)


def _parse_image(document: Any, name: str) -> str:
    if isinstance(document, dict) and not document.get(name):
        return ""
    return _matching_text(document, name, _IMAGE)


def _labels_of(document: Any) -> Mapping[str, str]:
    found = document.get("Labels") if isinstance(document, dict) else None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("Labels is not an object of texts")
    return found
