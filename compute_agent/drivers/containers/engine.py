"""Calls the engine of containers (Podman or Docker) with time limits, and follows its events.

The engine listens on a UNIX socket.

This module makes no decisions. The API is the one of the Docker Engine
(https://docs.docker.com/reference/api/engine/), which Podman also offers. Each call uses a connection of its
own, so a call that hangs delays no other call. Events are hints only. After a hint, the table of guests reads
the state.

A thread reads the stream of events (``GET /events``), with one JSON object on each line. Events contain the
labels of a container, so a line can be very long. A line that is too long is skipped, and the agent reads all
containers. A stream without events is opened again after a while, because a broken connection may cause no
error.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from compute_agent.bounded_http import HttpAnswer, LargeAnswerError, ask_server
from compute_agent.drivers.containers.container_state import (
    CHANGES,
    GUEST,
    ContainerState,
    PodState,
    changed_key,
    parse_container,
    parse_image_labels,
    parse_list,
    parse_pod,
)
from compute_agent.drivers.peer import PeerHint
from compute_agent.model.messages import DriverError, printable_text
from compute_agent.threads import NO_LOCK, ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

_MAX_LINE: Final = 1 << 16

_SILENCE_SECONDS: Final = 300.0
"""Seconds without an event after which the stream is opened again."""

_OK: Final = 200

EVENTS_THREAD: Final = ThreadSpec(
    "container-events",
    "when the engine of containers has an event",
    "reads events of Podman or Docker, and hands them on as hints",
    NO_LOCK,
    "the engine over its socket; the queue of ``containers``",
)


class EventStream:
    """Follows the events of an engine, in a thread of its own."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        path: str,
        on_change: Callable[[str], None],
        silence: float = _SILENCE_SECONDS,
    ) -> None:
        """Connect, and start the thread.

        :param connect: connects to the engine; raises OSError.
        :param path: the path of the request, with its query.
        :param on_change: called from the thread with the id of a container that may have changed. An empty id
            means all containers: at the beginning of the stream, after a gap, and at the end of the stream.
        :raises OSError: the engine does not answer.
        """
        self._connect = connect
        self._path = path
        self._on_change = on_change
        self._silence = silence
        self._closed = False
        self.reason = ""
        """The reason for the end of the stream; empty while it is open."""
        self._socket = self._request_events()
        start_thread(EVENTS_THREAD, self._run)

    @property
    def is_open(self) -> bool:
        """Whether the stream is still open, as far as the agent has noticed."""
        return not self.reason

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self.reason = self.reason or "it was closed"
        # shutdown() wakes the thread, which closes the socket.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _request_events(self) -> socket.socket:
        plain = self._connect()
        request = f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n"
        try:
            plain.sendall(request.encode("ascii"))
            plain.settimeout(self._silence)
        except OSError:
            plain.close()
            raise
        return plain

    # The thread

    def _run(self) -> None:
        reason = ""
        while not reason and not self._closed:
            try:
                reason = self._follow_events()
                if not reason:
                    self._socket = self._request_events()
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = f"the stream of events ended: {error}"
        self.reason = self.reason or reason or "it was closed"
        self._socket.close()
        self._on_change("")

    def _follow_events(self) -> str:
        """Report the events of one request.

        Return the reason why the stream has ended, or an empty text if no event came for ``silence`` seconds.
        """
        with self._socket as plain, http.client.HTTPResponse(plain, method="GET") as answer:
            try:
                answer.begin()
                if answer.status != _OK:
                    return f"the engine answers {answer.status} to the request for events"
                # Events before this answer were missed, so all containers are read.
                self._on_change("")
                while line := answer.readline(_MAX_LINE):
                    self._handle_line(line, answer)
            except TimeoutError:
                return ""
        return "the engine closed the stream of events"

    def _handle_line(self, line: bytes, answer: http.client.HTTPResponse) -> None:
        if not line.endswith(b"\n") and len(line) >= _MAX_LINE:
            LOG.debug(
                "An event of a container is longer than %d bytes, so the agent reads all containers",
                _MAX_LINE,
            )
            while line and not line.endswith(b"\n"):
                line = answer.readline(_MAX_LINE)
            self._on_change("")
        elif line.strip():
            key = changed_key(line)
            if key is not None:
                self._on_change(key)


CALL_SECONDS: Final = 5.0
"""The maximum time in seconds that a call waits for its answer."""

# The list of containers has a few KiB for each container. However, it also has the labels of images: up to 4
# MiB for each container with Podman, and six times as much if JSON has to escape them.
_MAX_ANSWER: Final = 64 << 20

_MAX_IMAGES: Final = 1000

_VERSION: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\Z")

_NOT_FOUND: Final = 404
_NOT_MODIFIED: Final = 304


class EngineError(DriverError):
    """The engine has refused a call, or gave no usable answer about one object, but it answers other calls.

    :ivar failure: the reason why the answer could not be read: it was not complete in time, or too long. None
        if the answer was read.
    """

    def __init__(self, text: str, failure: Exception | None = None) -> None:
        super().__init__(text)
        self.failure = failure

    @property
    def is_stuck(self) -> bool:
        """Whether the engine answers, but not to calls about this object."""
        return self.failure is not None


class ContainerEngine:
    """An engine of containers. Any thread is allowed to call the methods.

    Each call raises :class:`~compute_agent.model.messages.DriverError` if the engine does not answer in time.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        on_hint: Callable[[PeerHint], None],
        seconds: float = CALL_SECONDS,
        all_events: bool = False,
        has_pods: bool = False,
    ) -> None:
        """Begin without a connection; :meth:`open` connects.

        :param name: the name of the engine, for messages.
        :param path: the UNIX socket on which the engine listens.
        :param on_hint: called for each hint, from any thread.
        :param seconds: the time limit of each call.
        :param all_events: whether to follow all containers, and not only those with the label of guests.
        :param has_pods: whether the engine is Podman, which has pods.
        """
        self._name = name
        self._path = path
        self._on_hint = on_hint
        self._seconds = seconds
        self._all_events = all_events
        self._has_pods = has_pods
        # Podman serves its own API below this path, in addition to the API of the Docker Engine.
        self._own_path = "/libpod" if has_pods else ""
        self._events: EventStream | None = None
        self._version = ""
        # The labels by the id of the image. They are kept, because the id is a digest of the image and so the
        # labels never change.
        self._image_labels: dict[str, Mapping[str, str]] = {}

    @property
    def is_open(self) -> bool:
        """Whether the stream of events is open, as far as the agent has noticed."""
        return self._events is not None and self._events.is_open

    def open(self) -> None:
        """Check that the engine answers and that root runs the engine; begin to follow its events.

        :raises DriverError: the engine does not answer, or another user runs it.
        """
        self.close()
        found = self._ask_json("/version", whole_path=True)
        version = found.get("ApiVersion") if isinstance(found, dict) else None
        if not isinstance(version, str) or not _VERSION.match(version):
            raise DriverError(f"{self._name} at {self._path} does not tell the version of its API")
        if self._has_pods and not _is_podman(found):
            raise DriverError(f"{self._path} is not the socket of Podman: add docker to [guests] drivers")
        self._version = version
        # The filter leaves out events that change no guest, such as the events of health checks.
        filters = {"type": ["container"], "event": sorted(CHANGES)}
        if not self._all_events:
            # The filter includes the value, because Podman 4.3 sends no events for a label without its value.
            filters["label"] = [f"{GUEST}=true"]
        try:
            self._events = EventStream(
                self._connect,
                f"/v{version}/events?{urlencode({'filters': json.dumps(filters)})}",
                lambda key: self._on_hint(PeerHint(key, bool(key))),
            )
        except OSError as error:
            raise self._away_error(error) from error

    def close(self) -> None:
        """Disconnect."""
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def list_containers(self, label: str) -> list[ContainerState]:
        """The running and paused containers with a label; with an empty label, all of them.

        :raises EngineError: the engine still answers, but the list is too long or not complete in time.
        """
        filters = {"label": [label]} if label else {}
        if self._has_pods:
            # Docker lists paused containers by itself. Podman knows no filter for those that are stopping.
            filters["status"] = ["running", "paused"]
        try:
            found = self._ask_json(f"/containers/json?{urlencode({'filters': json.dumps(filters)})}")
        except EngineError as error:
            if error.failure is None:
                raise
            told = f"{self._name} answers, but gives no list of containers: {error.failure}"
            if isinstance(error.failure, LargeAnswerError):
                told = (
                    f"the list of containers of {self._name} is longer than {_MAX_ANSWER / (1 << 20):g} MiB,"
                    " because it has the labels of containers and of their images: remove containers with"
                    " very long labels"
                )
            raise EngineError(told, error.failure) from error
        try:
            return parse_list(found)
        except ValueError as error:
            raise DriverError(f"{self._name} gives an unexpected answer: {error}") from error

    def read_container(self, key: str) -> ContainerState | None:
        """The state of a container; None if no container has this id.

        :raises ValueError: the answer about this container cannot be used.
        """
        found = self._ask_json(f"{self._own_path}/containers/{key}/json")
        return None if found is None else parse_container(found)

    def read_pod(self, key: str) -> PodState | None:
        """The state of a pod; None if no pod has this id.

        :raises ValueError: the answer about this pod cannot be used.
        """
        found = self._ask_json(f"{self._own_path}/pods/{key}/json")
        return None if found is None else parse_pod(found)

    def read_image_labels(self, image: str) -> Mapping[str, str] | None:
        """The labels of an image; None if no image has this id, or its labels cannot be used."""
        if image not in self._image_labels:
            found = self._ask_json(f"/images/{image}/json")
            if found is None:
                return None
            try:
                labels = parse_image_labels(found)
            except ValueError:
                return None
            if len(self._image_labels) >= _MAX_IMAGES:
                self._image_labels.clear()
            self._image_labels[image] = labels
        return self._image_labels[image]

    def stop_container(self, key: str, seconds: float) -> None:
        """Stop a container; end it by force after ``seconds``.

        The engine then does not restart the container by itself.
        """
        whole = max(0, int(seconds))
        request = "POST", f"/containers/{key}/stop?t={whole}", whole + self._seconds
        try:
            self._send_request(*request)
        except EngineError as refusal:
            # Podman stops no paused container.
            try:
                self._send_request("POST", f"/containers/{key}/unpause", self._seconds)
            except EngineError:
                raise refusal from None
            self._send_request(*request)

    def kill_container(self, key: str) -> None:
        """Send SIGKILL to the main process of a container.

        The end of this process also ends all other processes in the container.
        """
        self._send_request("POST", f"/containers/{key}/kill", self._seconds)

    def stop_pod(self, key: str, infra: str, seconds: float) -> None:
        """Stop all containers of a pod; end them by force after ``seconds``.

        :param infra: the id of the pod's infra container.
        :raises DriverError: the answer about this pod cannot be used, or a container does not stop.
        """
        # The number is positive, because otherwise Podman waits as long as each container's own setting says.
        whole = max(1, int(seconds))
        path = f"{self._own_path}/pods/{key}"
        answer = self._send_request("POST", f"{path}/stop?t={whole}", whole + self._seconds)
        if answer.status != _NOT_MODIFIED:
            return
        # Podman 4.3 to 5.8 stops a pod only if all its containers run, and none of them is paused (PodStop in
        # pkg/api/handlers/libpod).
        try:
            pod = self.read_pod(key)
        except ValueError as error:
            raise DriverError(f"the state of pod {key[:12]} is not known: {error}") from error
        deadline = time.monotonic() + seconds
        for container in sorted(pod.running, key=lambda one: one == infra) if pod is not None else ():
            self.stop_container(container, deadline - time.monotonic())

    def kill_pod(self, key: str) -> None:
        """Send SIGKILL to the main processes of all containers of a pod."""
        self._send_request("POST", f"{self._own_path}/pods/{key}/kill", self._seconds)

    # Inner parts

    def _connect(self) -> socket.socket:
        """A connection to the engine.

        :raises OSError: the engine does not answer, or it runs as a user other than root and the agent's
            user.
        """
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.settimeout(self._seconds)
            plain.connect(str(self._path))
            credentials = plain.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, user, _ = struct.unpack("3i", credentials)
            if user not in (0, os.geteuid()):
                # The containers of another user would get CPUs by the labels that this user chooses.
                raise PermissionError(f"user {user} runs it, and not root")
        except BaseException:
            plain.close()
            raise
        return plain

    def _send_request(
        self, method: str, path: str, seconds: float, whole_path: bool = False, of_object: bool = False
    ) -> HttpAnswer:
        """Return the answer of the engine; an answer with the status 404 is not an error.

        :param whole_path: whether the path is complete, so that the version of the API is not added in front.
        :param of_object: whether the call is about one object, so that the engine perhaps still answers calls
            about other objects.
        :raises EngineError: the engine refuses the call, or has no answer about this object only.
        """
        if not whole_path:
            if not self._version:
                raise DriverError(f"{self._name} does not answer: there is no connection")
            path = f"/v{self._version}{path}"
        try:
            answer = ask_server(self._connect(), method, path, seconds, _MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            if of_object and (isinstance(error, LargeAnswerError) or self._still_answers()):
                told = f"{self._name} gives no answer to {method} {path[:200]} that can be used"
                raise EngineError(printable_text(f"{told}: {error}"), error) from error
            # The connection is closed here, because the stream of events would not notice an engine that
            # hangs.
            self.close()
            self._on_hint(PeerHint())
            raise self._away_error(error) from error
        if not answer.is_success and answer.status not in (_NOT_FOUND, _NOT_MODIFIED):
            told = f"{self._name} answers {answer.status} to {method} {path[:200]}"
            raise EngineError(printable_text(f"{told}: {_refusal_text(answer.content)}"))
        return answer

    def _still_answers(self) -> bool:
        """Whether the engine answers the simplest call, and only a call about one container hangs."""
        try:
            return ask_server(self._connect(), "GET", "/version", self._seconds, _MAX_ANSWER).is_success
        except (OSError, http.client.HTTPException):
            return False

    def _ask_json(self, path: str, whole_path: bool = False) -> Any:
        """The parsed answer about containers, a pod, an image or the engine; None if there is no such object.

        If the engine gives no answer about one object, the connection stays open, and the other guests stay
        managed.

        :param whole_path: whether the path is complete, and the call is about the engine itself.
        :raises EngineError: the answer about this object cannot be used.
        """
        answer = self._send_request("GET", path, self._seconds, whole_path, of_object=not whole_path)
        if answer.status == _NOT_FOUND:
            return None
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError) as error:
            raise EngineError(
                f"{self._name} gives an unexpected answer: {printable_text(str(error))}"
            ) from error

    def _away_error(self, error: Exception) -> DriverError:
        return DriverError(f"{self._name} at {self._path} does not answer: {error}")


def _is_podman(version: Mapping[str, Any]) -> bool:
    """Whether an answer to ``GET /version`` comes from Podman."""
    found = version.get("Components")
    return isinstance(found, list) and any(
        isinstance(one, dict) and one.get("Name") == "Podman Engine" for one in found
    )


def _refusal_text(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])[:500]
    except (ValueError, RecursionError, LookupError, TypeError):
        return content[:500].decode(errors="replace")
