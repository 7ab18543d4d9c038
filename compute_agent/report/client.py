"""A client of the Placement REST API over a keystoneauth1 adapter.

One method per request the agent needs (https://docs.openstack.org/api-ref/placement/). Answers come back as
plain dataclasses and mappings; every failure is a :class:`~compute_agent.report.errors.PlacementError`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote

from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from compute_agent.conf.placement import plugin_names
from compute_agent.model.allocation import ConsumerAllocations
from compute_agent.report.errors import (
    ConcurrentUpdateError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    OptionsError,
    PlacementError,
    UnavailableError,
)

LOG = logging.getLogger(__name__)

PREFERRED_MICROVERSION: Final = (1, 39)
# Below 1.28 neither nested providers nor consumer generations and error codes can be relied on.
MINIMUM_MICROVERSION: Final = (1, 28)

_NO_EXTENSIONS: Final = (0, 0)
_ATTRIBUTES_SINCE: Final = (1, 8)
_TREES_SINCE: Final = (1, 11)
"""Versions of the API below ``/ext/v1``."""

_UNTYPED_MICROVERSION: Final = "1.37"
_NO_TYPE: Final = "unknown"

_UNCHANGED: Final = 304
_UNAVAILABLE: Final = frozenset({502, 503, 504})
_CONCURRENT_UPDATE: Final = "placement.concurrent_update"


_WHERE: Final = "is it running where [placement] says (endpoint_override; endpoint or auth_url of auth_type)?"
_WHICH: Final = (
    "[placement] region_name and valid_interfaces choose it from the catalog, endpoint_override names it"
)


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    """A resource provider as ``GET /resource_providers`` lists it."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """All providers of a tree as ``GET /ext/v1/trees/{uuid}`` shows them, none before its parent.

    ``tag`` tells it from any other state of the tree, and of what is held of it.
    """

    tag: str
    providers: tuple[Mapping[str, Any], ...]


class PlacementClient:
    """Requests to one Placement endpoint. Safe to use from several threads."""

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._adapter = adapter
        self._microversion: str | None = None
        self._extensions: tuple[int, int] | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> Self:
        """A client as ``[placement]`` describes it.

        :raises OptionsError: the authentication options cannot be used.
        """
        wanted, present = conf.placement.auth_type, plugin_names()
        if wanted and wanted not in present and not conf.placement.auth_section:
            names = ", ".join(sorted(present))
            raise OptionsError(f"auth_type = {wanted}: there is no such plugin; there are {names}")
        try:
            auth = loading.load_auth_from_conf_options(conf, "placement")
            session = loading.load_session_from_conf_options(conf, "placement", auth=auth)
            adapter = loading.load_adapter_from_conf_options(conf, "placement", session=session, auth=auth)
        except ks_exceptions.ClientException as error:
            raise OptionsError(f"cannot be used: {error}") from error
        return cls(adapter)

    # Providers

    def providers_in_tree(self, root_uuid: str) -> list[ProviderRecord]:
        """Every provider of the tree that ``root_uuid`` is in; empty if there is none."""
        answer = self._request("GET", f"/resource_providers?in_tree={root_uuid}")
        return [_provider(record) for record in answer["resource_providers"]]

    def provider_record(self, name: str) -> ProviderRecord | None:
        """The provider of that name, if there is one."""
        answer = self._request("GET", f"/resource_providers?name={quote(name, safe='')}")
        return next(map(_provider, answer["resource_providers"]), None)

    def provider_named(self, name: str) -> str | None:
        """The uuid of the provider of that name, if there is one."""
        record = self.provider_record(name)
        return None if record is None else record.uuid

    def create_provider(self, uuid: str, name: str, parent_uuid: str | None) -> ProviderRecord:
        """Create a provider.

        :raises ConflictError: its name or uuid is taken.
        """
        body: dict[str, Any] = {"uuid": uuid, "name": name}
        if parent_uuid is not None:
            body["parent_provider_uuid"] = parent_uuid
        return _provider(self._request("POST", "/resource_providers", body))

    def update_provider(self, uuid: str, name: str, parent_uuid: str | None) -> ProviderRecord:
        """Rename a provider or give it another parent."""
        body = {"name": name, "parent_provider_uuid": parent_uuid}
        return _provider(self._request("PUT", f"/resource_providers/{uuid}", body))

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider.

        :raises ConflictError: while it has children or allocations.
        """
        self._request("DELETE", f"/resource_providers/{uuid}")

    def inventories(self, uuid: str) -> tuple[dict[str, dict[str, Any]], int]:
        """The inventories of a provider by resource class, and the provider's generation."""
        answer = self._request("GET", f"/resource_providers/{uuid}/inventories")
        return answer["inventories"], answer["resource_provider_generation"]

    def set_inventories(
        self, uuid: str, inventories: Mapping[str, Mapping[str, Any]], generation: int
    ) -> int:
        """Replace all inventories of a provider. Returns its new generation."""
        body = {"inventories": inventories, "resource_provider_generation": generation}
        answer = self._request("PUT", f"/resource_providers/{uuid}/inventories", body)
        return int(answer["resource_provider_generation"])

    def traits(self, uuid: str) -> tuple[frozenset[str], int]:
        """The traits of a provider, and the provider's generation."""
        answer = self._request("GET", f"/resource_providers/{uuid}/traits")
        return frozenset(answer["traits"]), answer["resource_provider_generation"]

    def set_traits(self, uuid: str, traits: frozenset[str], generation: int) -> int:
        """Replace all traits of a provider. Returns its new generation."""
        body = {"traits": sorted(traits), "resource_provider_generation": generation}
        answer = self._request("PUT", f"/resource_providers/{uuid}/traits", body)
        return int(answer["resource_provider_generation"])

    # Attributes, which are of an API that not every Placement has

    def keeps_attributes(self) -> bool:
        """Whether the server keeps attributes of providers; asked for once.

        :raises PlacementError:
        """
        with self._lock:
            return self._present_extensions() >= _ATTRIBUTES_SINCE

    def forget_extensions(self) -> None:
        """Ask anew what the server has beside Placement's own API: it may be another one by now."""
        with self._lock:
            self._extensions = None

    def _present_extensions(self) -> tuple[int, int]:
        if self._extensions is None:
            self._extensions = self._find_extensions()
        return self._extensions

    def _find_extensions(self) -> tuple[int, int]:
        try:
            return _version(self._send("GET", "/ext/v1", None, {})["version"]["max_version"])
        except (NotFoundError, CredentialsError):  # a proxy may let nobody ask for what it does not know
            return _NO_EXTENSIONS

    def attributes(self, uuid: str) -> tuple[dict[str, str | float], int]:
        """The attributes of a provider, and the provider's generation."""
        answer = self._request("GET", f"/ext/v1/resource_providers/{uuid}/attributes")
        return answer["attributes"], answer["resource_provider_generation"]

    def set_attributes(self, uuid: str, attributes: Mapping[str, str | float], generation: int) -> int:
        """Replace all attributes of a provider. Returns its new generation."""
        body = {"attributes": attributes, "resource_provider_generation": generation}
        answer = self._request("PUT", f"/ext/v1/resource_providers/{uuid}/attributes", body)
        return int(answer["resource_provider_generation"])

    # Whole trees, which are of that API, too

    def has_trees(self) -> bool:
        """Whether the server shows and takes whole trees at once; asked for once.

        :raises PlacementError:
        """
        with self._lock:
            return self._present_extensions() >= _TREES_SINCE

    def tree(self, uuid: str, known: str = "") -> TreeRecord | None:
        """The tree of a provider with all that is of it and held of it; None if it is the ``known`` one.

        :raises NotFoundError: there is no such provider.
        """
        headers = {"If-None-Match": f'"{known}"'} if known else {}
        response = self._respond("GET", f"/ext/v1/trees/{uuid}?allocations=true", None, headers, _UNCHANGED)
        if response.status_code == _UNCHANGED:
            return None
        tag = response.headers.get("ETag", "").strip('"')
        return TreeRecord(tag, tuple(_json("GET", "/ext/v1/trees", response)["resource_providers"]))

    def write_tree(self, providers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Make and change providers of one tree, all or nothing; the generation of each afterwards, by uuid.

        :raises ConcurrentUpdateError: one is not as it was described to be.
        :raises ConflictError: a name is taken, or an inventory that would go is in use.
        """
        answer = self._request("POST", "/ext/v1/trees", {"resource_providers": providers})
        return {record["uuid"]: record["generation"] for record in answer["resource_providers"]}

    # Names

    def resource_classes(self) -> frozenset[str]:
        """The names of all resource classes the server knows."""
        answer = self._request("GET", "/resource_classes")
        return frozenset(record["name"] for record in answer["resource_classes"])

    def create_resource_class(self, name: str) -> None:
        """Make sure that a custom resource class exists."""
        self._request("PUT", f"/resource_classes/{quote(name, safe='')}")

    def known_traits(self) -> frozenset[str]:
        """The names of all traits the server knows."""
        return frozenset(self._request("GET", "/traits")["traits"])

    def create_trait(self, name: str) -> None:
        """Make sure that a custom trait exists."""
        self._request("PUT", f"/traits/{quote(name, safe='')}")

    # Allocations

    def allocations(self, consumer: str) -> ConsumerAllocations:
        """What a consumer holds, on whatever provider."""
        answer = self._request("GET", f"/allocations/{quote(consumer, safe='')}")
        return ConsumerAllocations(
            consumer=consumer,
            resources={uuid: record["resources"] for uuid, record in answer["allocations"].items()},
            generation=answer.get("consumer_generation"),
            project_id=answer.get("project_id"),
            user_id=answer.get("user_id"),
            consumer_type=answer.get("consumer_type"),
        )

    def set_allocations(self, held: ConsumerAllocations) -> None:
        """Make a consumer hold this, and nothing else; nothing at all if its resources are empty.

        :raises ConflictError: its generation is not that one any more, or there is not enough.
        """
        body: dict[str, Any] = {
            "allocations": {uuid: {"resources": amounts} for uuid, amounts in held.resources.items()},
            "project_id": held.project_id,
            "user_id": held.user_id,
            "consumer_generation": held.generation,
        }
        microversion = None
        if held.consumer_type == _NO_TYPE:
            microversion = _UNTYPED_MICROVERSION  # what is shown for consumers without a type cannot be sent
        elif held.consumer_type is not None:
            body["consumer_type"] = held.consumer_type
        self._request("PUT", f"/allocations/{quote(held.consumer, safe='')}", body, microversion)

    def provider_allocations(self, uuid: str) -> dict[str, dict[str, int]]:
        """What is taken from one provider: amounts by consumer uuid and resource class."""
        answer = self._request("GET", f"/resource_providers/{uuid}/allocations")
        return {consumer: record["resources"] for consumer, record in answer["allocations"].items()}

    def reshape(self, body: Mapping[str, Any]) -> None:
        """Replace inventories and allocations at once, all or nothing (POST /reshaper)."""
        consumers = body["allocations"].values()
        if any(consumer.get("consumer_type") == _NO_TYPE for consumer in consumers):
            # What is shown for consumers without a type cannot be sent. Before types came up none changes.
            untyped = {
                uuid: {name: value for name, value in consumer.items() if name != "consumer_type"}
                for uuid, consumer in body["allocations"].items()
            }
            self._request("POST", "/reshaper", {**body, "allocations": untyped}, _UNTYPED_MICROVERSION)
        else:
            self._request("POST", "/reshaper", body)

    # The transport

    def microversion(self) -> str:
        """The microversion in use: 1.39, or the newest the server has, asked for once.

        :raises PlacementError: the server is too old for the agent.
        """
        with self._lock:
            if self._microversion is None:
                self._microversion = self._negotiate()
            return self._microversion

    def knows_consumer_types(self) -> bool:
        """Whether consumers have types in the microversion in use.

        :raises PlacementError:
        """
        return _version(self.microversion()) > _version(_UNTYPED_MICROVERSION)

    def _negotiate(self) -> str:
        document = self._send("GET", "/", None, {})
        newest = max((_version(entry["max_version"]) for entry in document["versions"]), default=(0, 0))
        chosen = min(PREFERRED_MICROVERSION, newest)
        if chosen < MINIMUM_MICROVERSION:
            needed = ".".join(map(str, MINIMUM_MICROVERSION))
            detail = (
                f"the server offers microversion {newest[0]}.{newest[1]}, the agent needs {needed} or later"
            )
            raise PlacementError("GET", "/", detail, status=200)
        return f"{chosen[0]}.{chosen[1]}"

    def _request(
        self, method: str, url: str, body: Mapping[str, Any] | None = None, microversion: str | None = None
    ) -> Any:
        version = microversion or self.microversion()
        return self._send(method, url, body, {"OpenStack-API-Version": f"placement {version}"})

    def _send(self, method: str, url: str, body: Mapping[str, Any] | None, headers: dict[str, str]) -> Any:
        return _json(method, url, self._respond(method, url, body, headers))

    def _respond(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        headers: dict[str, str],
        expected: int = 200,
    ) -> Any:
        """A response of success, or with the ``expected`` status."""
        arguments: dict[str, Any] = {"headers": {"Accept": "application/json", **headers}, "raise_exc": False}
        if body is not None:
            arguments["json"] = body
        started = time.monotonic()
        try:
            response = self._adapter.request(url, method, **arguments)
        except (ks_exceptions.Unauthorized, ks_exceptions.AuthorizationFailure) as error:
            raise CredentialsError(method, url, str(error)) from error
        except ks_exceptions.MissingAuthPlugin as error:
            raise OptionsError("auth_type is not set: how to reach Placement is not said") from error
        except ks_exceptions.ConnectionError as error:
            raise UnavailableError(method, url, f"no answer: {_shortened(error)}; {_WHERE}") from error
        except ks_exceptions.EndpointNotFound as error:
            raise UnavailableError(method, url, f"{error}; {_WHICH}") from error
        except ks_exceptions.ClientException as error:
            raise UnavailableError(method, url, str(error)) from error
        LOG.debug("%s %s: HTTP %d in %.3f s", method, url, response.status_code, time.monotonic() - started)
        if response.status_code >= 300 and response.status_code != expected:
            raise _failure(method, url, response)
        return response


def _json(method: str, url: str, response: Any) -> Any:
    """What a response says; None if it says nothing."""
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        detail = f"the answer is not JSON: {response.text[:200]!r}"
        raise PlacementError(method, url, detail, status=response.status_code) from error


def _shortened(error: BaseException) -> str:
    """What could not be reached, and the system's own reason, without the names of all that passed it on."""
    root: BaseException | None = error
    reason = ""
    while root is not None:
        if isinstance(root, OSError) and root.strerror:
            reason = root.strerror
        root = root.__cause__ or root.__context__
    return f"{str(error).partition(': ')[0]}: {reason}" if reason else str(error)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _provider(record: Mapping[str, Any]) -> ProviderRecord:
    return ProviderRecord(
        uuid=record["uuid"],
        name=record["name"],
        generation=record["generation"],
        parent_uuid=record.get("parent_provider_uuid"),
    )


def _failure(method: str, url: str, response: Any) -> PlacementError:
    """The exception for an answer that is no success, with the error's own text where there is one."""
    status: int = response.status_code
    code, detail = None, response.text[:500] or response.reason or "no text"
    try:
        first = response.json()["errors"][0]
        code, detail = first.get("code"), first.get("detail") or detail
        detail = detail.strip().rpartition("\n\n")[2]  # a general sentence is before it
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        pass  # a proxy answered, or an older server: its text will do
    kind = PlacementError
    if status in _UNAVAILABLE:
        kind = UnavailableError
    elif status in (401, 403):
        kind = CredentialsError
    elif status == 404:
        kind = NotFoundError
    elif status == 409:
        kind = ConcurrentUpdateError if code == _CONCURRENT_UPDATE else ConflictError
    return kind(method, url, " ".join(detail.split()), status=status, code=code)
