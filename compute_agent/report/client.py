"""A client of the Placement REST API.

The client has one method for each request that the agent sends
(https://docs.openstack.org/api-ref/placement/). Answers are returned as plain dataclasses and mappings. Each
failure is a :class:`~compute_agent.report.answers.PlacementError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from compute_agent.model.guest import Allocation, ConsumerAllocations
from compute_agent.report.answers import EachValue, MaybeNull, NotFoundError, PlacementError
from compute_agent.report.claim_ends import TimedClaim, TimedClaimList, parse_claim, parse_time
from compute_agent.report.transport import UNTYPED_MICROVERSION, PlacementTransport, as_json

_ATTRIBUTES_SINCE: Final = (1, 8)
_TREES_SINCE: Final = (1, 11)
_EXPIRIES_SINCE: Final = (1, 14)
_ENDS_SINCE: Final = (1, 21)
"""The first versions of the API ``/ext/v1`` with attributes, with whole trees, with expiring claims, and with
the list of claims that end.
"""

_MAX_PAGES: Final = 16
"""Maximum number of pages of one list. A page has a thousand claims, which is more than a host has guests."""

_NO_TYPE: Final = "unknown"

_UNCHANGED: Final = 304

# The shapes of answers; see compute_agent.report.answers. Each shape contains only the keys that the agent
# reads, so servers can add other keys.
_PROVIDER: Final = {"uuid": str, "name": str, "generation": int, "parent_provider_uuid": MaybeNull(str)}
_PROVIDERS: Final = {"resource_providers": [_PROVIDER]}
_GENERATION: Final = {"resource_provider_generation": int}
_INVENTORY: Final = {
    "total": int,
    "reserved": int,
    "min_unit": int,
    "max_unit": int,
    "step_size": int,
    "allocation_ratio": float,
}
_INVENTORIES: Final = {"inventories": EachValue(_INVENTORY), **_GENERATION}
_TRAITS: Final = {"traits": [str]}
_HELD: Final = EachValue({"resources": EachValue(int)})
_CONSUMER: Final = {
    "allocations": _HELD,
    "consumer_generation": MaybeNull(int),
    "project_id": MaybeNull(str),
    "user_id": MaybeNull(str),
    "consumer_type": MaybeNull(str),
}
_CLAIM: Final = {"claim": {"consumer_generation": int, "expires_in": float}}
_TIMED: Final = {
    "now": str,
    "claims": [{"consumer_uuid": str}],
    "links": MaybeNull([{"rel": str, "href": str}]),
}
_CLAIMED: Final = {"claims": [{"allocations": _HELD}]}
_ATTRIBUTES: Final = {"attributes": EachValue((str, float)), **_GENERATION}
_TREE: Final = {
    "resource_providers": [
        {
            **_PROVIDER,
            "inventories": EachValue(_INVENTORY),
            "traits": [str],
            "attributes": EachValue((str, float)),
            "allocations": _HELD,
        }
    ]
}
_WRITTEN: Final = {"resource_providers": [{"uuid": str, "generation": int}]}


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    """A resource provider in the list of ``GET /resource_providers``."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """All providers of a tree, as ``GET /ext/v1/trees/{uuid}`` returns them, parents first.

    :ivar tag: the ETag; it changes with each change of the tree or of its allocations.
    """

    tag: str
    providers: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ExpiringClaim:
    """A claim that expires.

    :ivar generation: the generation of its consumer.
    :ivar seconds: the seconds until the claim expires.
    :ivar is_final: whether the claim cannot be confirmed, so that it certainly ends at this time.
    """

    generation: int
    seconds: float
    is_final: bool = False


class PlacementClient(PlacementTransport):
    """Requests to one Placement endpoint. Safe to use from several threads."""

    # Providers

    def providers_in_tree(self, root_uuid: str) -> list[ProviderRecord]:
        """All providers of the tree that contains ``root_uuid``; empty if there is no such provider."""
        answer = self.send_request("GET", f"/resource_providers?in_tree={root_uuid}", shape=_PROVIDERS)
        return [_provider_record(record) for record in answer["resource_providers"]]

    def provider_record(self, name: str) -> ProviderRecord | None:
        """The provider with this name; None if there is no such provider."""
        answer = self.send_request(
            "GET", f"/resource_providers?name={quote(name, safe='')}", shape=_PROVIDERS
        )
        return next(map(_provider_record, answer["resource_providers"]), None)

    def provider_named(self, name: str) -> str | None:
        """The uuid of the provider with this name; None if there is no such provider."""
        record = self.provider_record(name)
        return None if record is None else record.uuid

    def create_provider(self, uuid: str, name: str, parent_uuid: str | None) -> ProviderRecord:
        """Create a provider; a root provider if ``parent_uuid`` is None.

        :raises ConflictError: the name or uuid is taken.
        """
        body: dict[str, Any] = {"uuid": uuid, "name": name}
        if parent_uuid is not None:
            body["parent_provider_uuid"] = parent_uuid
        return _provider_record(self.send_request("POST", "/resource_providers", body, shape=_PROVIDER))

    def update_provider(self, uuid: str, name: str, parent_uuid: str | None) -> ProviderRecord:
        """Rename a provider or give it another parent."""
        body = {"name": name, "parent_provider_uuid": parent_uuid}
        return _provider_record(
            self.send_request("PUT", f"/resource_providers/{uuid}", body, shape=_PROVIDER)
        )

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider.

        :raises ConflictError: the provider has children or allocations.
        """
        self.send_request("DELETE", f"/resource_providers/{uuid}")

    def get_inventories(self, uuid: str) -> tuple[dict[str, dict[str, Any]], int]:
        """The inventories of a provider by resource class, and the generation of the provider."""
        answer = self.send_request("GET", f"/resource_providers/{uuid}/inventories", shape=_INVENTORIES)
        return answer["inventories"], answer["resource_provider_generation"]

    def set_inventories(
        self, uuid: str, inventories: Mapping[str, Mapping[str, Any]], generation: int
    ) -> int:
        """Replace all inventories of a provider; return its new generation."""
        return self._replace_part(f"/resource_providers/{uuid}", "inventories", inventories, generation)

    def get_traits(self, uuid: str) -> tuple[frozenset[str], int]:
        """The traits of a provider, and the generation of the provider."""
        answer = self.send_request("GET", f"/resource_providers/{uuid}/traits", shape=_TRAITS | _GENERATION)
        return frozenset(answer["traits"]), answer["resource_provider_generation"]

    def set_traits(self, uuid: str, traits: frozenset[str], generation: int) -> int:
        """Replace all traits of a provider; return its new generation."""
        return self._replace_part(f"/resource_providers/{uuid}", "traits", sorted(traits), generation)

    def _replace_part(self, path: str, name: str, value: Any, generation: int) -> int:
        body = {name: value, "resource_provider_generation": generation}
        answer = self.send_request("PUT", f"{path}/{name}", body, shape=_GENERATION)
        return int(answer["resource_provider_generation"])

    # Attributes. They are in the API below /ext/v1, which not every Placement has

    def keeps_attributes(self) -> bool:
        """Whether the server supports attributes of providers. The server is asked only once."""
        return self.extension_version() >= _ATTRIBUTES_SINCE

    def get_attributes(self, uuid: str) -> tuple[dict[str, str | float], int]:
        """The attributes of a provider, and the generation of the provider."""
        answer = self.send_request("GET", f"/ext/v1/resource_providers/{uuid}/attributes", shape=_ATTRIBUTES)
        return answer["attributes"], answer["resource_provider_generation"]

    def set_attributes(self, uuid: str, attributes: Mapping[str, str | float], generation: int) -> int:
        """Replace all attributes of a provider; return its new generation."""
        path = f"/ext/v1/resource_providers/{uuid}"
        return self._replace_part(path, "attributes", attributes, generation)

    # Whole trees. They are in the API below /ext/v1

    def has_trees(self) -> bool:
        """Whether the server reads and writes whole trees in one request. The server is asked only once."""
        return self.extension_version() >= _TREES_SINCE

    def get_tree(self, uuid: str, known: str = "") -> TreeRecord | None:
        """The tree of a provider with its allocations; None if the tree still has the tag ``known``.

        :raises NotFoundError: there is no such provider.
        """
        # If the request has the tag, the answer for an unchanged tree is 304 without a body. This is the
        # usual case.
        headers = {"If-None-Match": f'"{known}"'} if known else {}
        response = self._get_response(
            "GET", f"/ext/v1/trees/{uuid}?allocations=true", None, headers, _UNCHANGED
        )
        if response.status_code == _UNCHANGED:
            return None
        tag = response.headers.get("ETag", "").strip('"')
        return TreeRecord(tag, tuple(as_json("GET", "/ext/v1/trees", response, _TREE)["resource_providers"]))

    def write_tree(self, providers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Create and change providers of one tree in one request. Placement makes all changes or no change.

        :return: the new generations by provider uuid.
        :raises ConcurrentUpdateError: a provider has another generation than the request says.
        :raises ConflictError: a name is taken, or an inventory to remove is in use.
        :raises PlacementError: the request failed, or the answer lacks a provider.
        """
        path = "/ext/v1/trees"
        answer = self.send_request("POST", path, {"resource_providers": providers}, shape=_WRITTEN)
        generations = {record["uuid"]: record["generation"] for record in answer["resource_providers"]}
        # Without the new generation the agent would send the old one, and Placement would refuse its next
        # write.
        if missing := sorted({provider["uuid"] for provider in providers} - generations.keys()):
            raise PlacementError("POST", path, f"the answer lacks the providers {', '.join(missing)}")
        return generations

    # Names

    def resource_classes(self) -> frozenset[str]:
        """The names of all resource classes that the server knows."""
        answer = self.send_request("GET", "/resource_classes", shape={"resource_classes": [{"name": str}]})
        return frozenset(record["name"] for record in answer["resource_classes"])

    def create_resource_class(self, name: str) -> None:
        """Create a custom resource class, if it does not exist."""
        self.send_request("PUT", f"/resource_classes/{quote(name, safe='')}")

    def known_traits(self) -> frozenset[str]:
        """The names of all traits that the server knows."""
        return frozenset(self.send_request("GET", "/traits", shape=_TRAITS)["traits"])

    def create_trait(self, name: str) -> None:
        """Create a custom trait, if it does not exist."""
        self.send_request("PUT", f"/traits/{quote(name, safe='')}")

    # Allocations

    def get_allocations(self, consumer: str) -> ConsumerAllocations:
        """The allocations of a consumer on all providers."""
        answer = self.send_request("GET", f"/allocations/{quote(consumer, safe='')}", shape=_CONSUMER)
        return ConsumerAllocations(
            consumer=consumer,
            resources={uuid: record["resources"] for uuid, record in answer["allocations"].items()},
            generation=answer.get("consumer_generation"),
            project_id=answer.get("project_id"),
            user_id=answer.get("user_id"),
            consumer_type=answer.get("consumer_type"),
        )

    def set_allocations(self, held: ConsumerAllocations) -> None:
        """Replace all allocations of a consumer; without resources, the consumer is removed.

        :raises ConflictError: the generation of the consumer has changed, or a provider has too little free
            capacity.
        """
        # Placement shows "unknown" for consumers without a type, but refuses it in requests.
        untyped = held.consumer_type == _NO_TYPE
        body = consumer_body(replace(held, consumer_type=None) if untyped else held)
        microversion = UNTYPED_MICROVERSION if untyped else None
        self.send_request("PUT", f"/allocations/{quote(held.consumer, safe='')}", body, microversion)

    def expiring_claim(self, consumer: str) -> ExpiringClaim | None:
        """The expiring claim of a consumer; None if the consumer or the server has no such claims."""
        if self.extension_version() < _EXPIRIES_SINCE:
            return None
        try:
            claim = self.send_request("GET", f"/ext/v1/claims/{consumer}", shape=_CLAIM)["claim"]
        except NotFoundError:
            # The consumer has no claim, or its claim is confirmed and never expires.
            return None
        return ExpiringClaim(claim["consumer_generation"], claim["expires_in"], claim.get("is_final") is True)

    def lists_timed_claims(self) -> bool:
        """Whether the server lists claims that end. The server is asked only once."""
        return self.extension_version() >= _ENDS_SINCE

    def timed_claims(self, root_uuid: str) -> TimedClaimList:
        """The claims that have an end time and amounts on the tree of a host, and the time of the database.

        A claim that cannot be read does not affect other claims.

        :raises NotFoundError: there is no such root provider.
        :raises PlacementError: the request failed, or the answer is wrong.
        """
        path, marker, now = "/ext/v1/claims", "", ""
        found: dict[str, TimedClaim] = {}
        unread: dict[str, str] = {}
        for _ in range(_MAX_PAGES):
            page = f"{path}?root={quote(root_uuid, safe='')}{marker}"
            answer = self.send_request("GET", page, shape=_TIMED)
            # The database's time in the first page, the earliest, counts as the time of the whole list.
            now = now or answer["now"]
            for row in answer["claims"]:
                try:
                    found[row["consumer_uuid"]] = parse_claim(row)
                # A date can exceed what a float or the platform represents.
                except (ValueError, OverflowError, OSError) as error:
                    unread[row["consumer_uuid"]] = str(error)
            try:
                following = _next_marker(answer.get("links") or ())
                if not following:
                    return TimedClaimList(parse_time(now), found, unread)
            except (ValueError, OverflowError, OSError) as error:
                raise PlacementError("GET", path, f"the answer is invalid: {error}", status=200) from error
            marker = f"&marker={quote(following, safe='')}"
        raise PlacementError("GET", path, f"the list has more than {_MAX_PAGES} pages", status=200)

    def claim_place(self, consumer: ConsumerAllocations, query: str, host: str) -> Allocation:
        """Find free capacity for a consumer on a host and claim it, in one request; return the allocation.

        :param consumer: the owner, the type and the generation of the consumer; its resources do not matter.
        :param query: the resources, as for ``GET /allocation_candidates``.
        :param host: the uuid of the root provider of the host.
        :raises ConcurrentUpdateError: the consumer has another generation by now.
        :raises ConflictError: the host has too little free capacity.
        :raises NotFoundError: the server has no such claims.
        """
        claim = {
            "consumer_uuid": consumer.consumer,
            "consumer_generation": consumer.generation,
            "consumer_type": consumer.consumer_type,
            "project_id": consumer.project_id,
            "user_id": consumer.user_id,
            "query": query,
            "allowed_hosts": [host],
        }
        answer = self.send_request("POST", "/ext/v1/claims", {"claims": [claim]}, shape=_CLAIMED)
        (allocations,) = (each["allocations"] for each in answer["claims"])
        return {uuid: record["resources"] for uuid, record in allocations.items()}

    def confirm_claim(self, consumer: str, generation: int) -> None:
        """Confirm a claim, so that it no longer expires.

        :raises NotFoundError: the claim has expired, or is confirmed already.
        :raises ConcurrentUpdateError: another program has changed the consumer.
        """
        self.send_request("PUT", f"/ext/v1/claims/{consumer}", {"consumer_generation": generation})

    def provider_allocations(self, uuid: str) -> dict[str, dict[str, int]]:
        """The allocations of one provider: amounts by consumer uuid and resource class."""
        answer = self.send_request(
            "GET", f"/resource_providers/{uuid}/allocations", shape={"allocations": _HELD}
        )
        return {consumer: record["resources"] for consumer, record in answer["allocations"].items()}

    def send_reshape(self, body: Mapping[str, Any]) -> None:
        """Replace inventories and allocations, completely or not at all, in one request (POST /reshaper)."""
        consumers = body["allocations"].values()
        if any(consumer.get("consumer_type") == _NO_TYPE for consumer in consumers):
            # Placement shows "unknown" for consumers without a type, but refuses it in requests. A request
            # with a microversion that has no types leaves the types unchanged.
            untyped = {
                uuid: {name: value for name, value in consumer.items() if name != "consumer_type"}
                for uuid, consumer in body["allocations"].items()
            }
            self.send_request("POST", "/reshaper", {**body, "allocations": untyped}, UNTYPED_MICROVERSION)
        else:
            self.send_request("POST", "/reshaper", body)


def consumer_body(held: ConsumerAllocations) -> dict[str, Any]:
    """The allocations of a consumer in the form of the Placement API."""
    return {
        "allocations": {uuid: {"resources": dict(amounts)} for uuid, amounts in held.resources.items()},
        "project_id": held.project_id,
        "user_id": held.user_id,
        "consumer_generation": held.generation,
        **({} if held.consumer_type is None else {"consumer_type": held.consumer_type}),
    }


def _next_marker(links: Sequence[Mapping[str, str]]) -> str:
    """The marker in the link to the next page; empty if there is no such link."""
    # Only the marker is used, because the link itself can lead to another server.
    for link in links:
        if link["rel"] == "next" and (found := parse_qs(urlsplit(link["href"]).query).get("marker")):
            return found[0]
    return ""


def _provider_record(record: Mapping[str, Any]) -> ProviderRecord:
    return ProviderRecord(
        uuid=record["uuid"],
        name=record["name"],
        generation=record["generation"],
        parent_uuid=record.get("parent_provider_uuid"),
    )
