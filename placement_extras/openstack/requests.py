"""What our commands of ``openstack`` have in common: asking the service, and reading options."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from keystoneauth1 import exceptions as ks_exceptions
from osc_lib import exceptions
from osc_lib.command import command

_TREES: Final = "1.14"
"""The microversion since which providers are shown with the root of their tree, and asked for by it."""


def request(asking: command.Command, method: str, path: str, **options: Any) -> Any:
    """What the service answers, read as JSON; None if it answers nothing.

    :param options: as ``requests`` takes them; ``version`` is another microversion than the client's.
    :raises CommandError: the answer is none of a Placement service, or the service says why it has none.
    """
    client: Any = asking.app.client_manager.placement  # type: ignore[attr-defined]  # osc-placement puts it there
    try:
        answer = client.request(method, path, **options)  # which reads errors as JSON, and expects its fields
        return answer.json() if answer.content else None
    except ks_exceptions.HttpServerError as error:  # of which osc-placement shows the title alone
        if not error.details or error.details.lstrip().startswith("<"):  # the page of a proxy
            raise
        raise exceptions.CommandError(f"{error}: {error.details}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise exceptions.CommandError(
            f"{method} {path}: what answered is no Placement service ({error}). See whether the endpoint"
            " (openstack endpoint list, --os-endpoint or OS_ENDPOINT) is its address, without a path such as"
            " /console behind it."
        ) from None


def request_ours(asking: command.Command, method: str, path: str, **options: Any) -> Any:
    """As :func:`request`, where a stock service has nothing of that path.

    :raises CommandError: this one has not, either.
    """
    try:
        return request(asking, method, path, **options)
    except exceptions.NotFound:
        raise exceptions.CommandError(f"This Placement service has no {path}.") from None


def roots(asking: command.Command, hosts: Iterable[str]) -> list[str]:
    """The uuids of root providers that are given by uuid or by name.

    :raises CommandError: there is none of that name.
    """
    return [each if _is_uuid(each) else _root(asking, each) for each in hosts]


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _root(asking: command.Command, name: str) -> str:
    found = request(asking, "GET", "/resource_providers", params={"name": name}, version=_TREES)
    for each in found["resource_providers"]:
        return str(each["root_provider_uuid"])
    raise exceptions.CommandError(f"There is no resource provider of the name {name}.")


class HostNames:
    """The names of hosts, asked for once for each tree; empty where whoever asks may not see them."""

    def __init__(self, asking: command.Command) -> None:
        self._asking = asking
        self._known: dict[str, str] = {}

    def of(self, provider: str) -> str:
        """The name of the root of a provider's tree."""
        if provider not in self._known:
            self._known |= {provider: "", **self._look(provider)}
        return self._known[provider]

    def _look(self, provider: str) -> dict[str, str]:
        asked = {"in_tree": provider}
        try:
            answer = request(self._asking, "GET", "/resource_providers", params=asked, version=_TREES)
        except (exceptions.ClientException, exceptions.CommandError, ks_exceptions.ClientException):
            return {}  # what was asked for is done, and is shown without names
        names = {each["uuid"]: each["name"] for each in answer["resource_providers"]}
        return {each["uuid"]: names[each["root_provider_uuid"]] for each in answer["resource_providers"]}


def warn(asking: command.Command, warnings: Iterable[str]) -> None:
    """Say on the standard error what of a flavor was not understood."""
    for each in warnings:
        print(f"Warning: {each}.", file=asking.app.stderr)


def pairs(given: Iterable[str], option: str, what: str) -> dict[str, str]:
    """Options of the form ``<name>=<value>``, by name.

    :raises CommandError: one has another form.
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise exceptions.CommandError(f"{option} {each}: <name>={what} is expected.")
        found[name] = value
    return found


def in_words(resources: Mapping[str, int]) -> str:
    """Amounts by class, as osc-placement shows them."""
    return ",".join(f"{name}={amount}" for name, amount in sorted(resources.items()))
