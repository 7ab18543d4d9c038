"""Functions for all our commands of ``openstack``: for requests, names of hosts and repeated options."""

import argparse
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

from cliff.columns import FormattableColumn
from keystoneauth1 import exceptions as ks_exceptions
from osc_lib import exceptions
from osc_lib.command import command

_TREES_VERSION: Final = "1.14"
"""First microversion that shows the root of a provider's tree, and has the filter ``in_tree``."""

TableRow = tuple[Any, ...]
ShownTable = tuple[tuple[str, ...], list[TableRow]]
"""The columns and the rows that a command shows."""
ShownObject = tuple[tuple[str, ...], TableRow]
"""The columns and the values of one shown object."""


class PlacementCommand(command.Command):
    """A command of this plugin, which adds its arguments in ``_add_arguments``."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        self._add_arguments(parser)
        return parser

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        raise NotImplementedError


class UuidCommand(PlacementCommand):
    """A command about one object, with the uuid of the object as its first argument."""

    noun: ClassVar[str]
    """The noun of the object in the help text."""

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("uuid", metavar="<uuid>", help=f"UUID of the {self.noun}")


def send_request(asking: command.Command, method: str, path: str, **options: Any) -> Any:
    """Send a request; return the JSON of the answer, or None if the answer is empty.

    :param options: keyword arguments for ``requests``; ``version`` overrides the client's microversion.
    :raises CommandError: the answer is not from a Placement service, or has a status of 500 or more. The
        message of the error has the reason.
    """
    client: Any = asking.app.client_manager.placement  # type: ignore[attr-defined]  # from osc-placement
    try:
        # osc-placement would fail on an error answer that is not JSON with the fields it expects, so this
        # function handles such answers
        answer = client.request(method, path, **options)
        return answer.json() if answer.content else None
    except ks_exceptions.HttpServerError as error:  # osc-placement would show only the title of the error
        if not error.details or error.details.lstrip().startswith("<"):  # the details are a proxy's HTML page
            raise
        raise exceptions.CommandError(f"{error}: {error.details}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise exceptions.CommandError(
            f"{method} {path}: the answer is not from a Placement service ({error}). Check that the endpoint"
            " (openstack endpoint list, --os-endpoint or OS_ENDPOINT) is its address, without a path such as"
            " /console."
        ) from None


def request_extension(asking: command.Command, method: str, path: str, **options: Any) -> Any:
    """Send a request, like :func:`send_request`, to a path that OpenStack Placement does not have.

    :raises CommandError: the service does not have the path, or :func:`send_request` raises this error.
    """
    try:
        return send_request(asking, method, path, **options)
    except exceptions.NotFound:
        raise exceptions.CommandError(f"This Placement service has no {path}.") from None


def read_pages(asking: command.Command, path: str, asked: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the items of a list that the service sends in pages.

    :param name: the field of each answer that has a page of the list.
    :raises CommandError: :func:`request_extension` raises this error.
    """
    while True:
        page = request_extension(asking, "GET", path, params=asked)
        yield from page[name]
        if "links" not in page:
            return
        # only the query of the link is used, because the host in the link is perhaps not reachable from here
        following = parse_qs(urlsplit(page["links"][0]["href"]).query)
        asked = {key: values[0] for key, values in following.items()}


def root_uuids(asking: command.Command, hosts: Iterable[str]) -> list[str]:
    """Return the uuids of these hosts, each given by its name or by the uuid of its root provider.

    :raises CommandError: a host is unknown.
    """
    return [each if _is_uuid(each) else _root_uuid(asking, each) for each in hosts]


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _root_uuid(asking: command.Command, name: str) -> str:
    found = send_request(asking, "GET", "/resource_providers", params={"name": name}, version=_TREES_VERSION)
    for each in found["resource_providers"]:
        return str(each["root_provider_uuid"])
    raise exceptions.CommandError(f"There is no resource provider of the name {name}.")


class HostNames:
    """The names of hosts and providers. Each tree is requested from the service only once.

    A name is empty if the user has no right to see it.
    """

    def __init__(self, asking: command.Command) -> None:
        self._asking = asking
        self._known: dict[str, tuple[str, str]] = {}

    def host_name(self, provider: str) -> str:
        """Return the name of the root of a provider's tree."""
        return self._names_of(provider)[0]

    def host_names(self, providers: Iterable[str]) -> list[str]:
        """Return the sorted names of the roots of these providers' trees, without names that are unknown."""
        return sorted({name for each in providers if (name := self.host_name(each))})

    def provider_name(self, provider: str) -> str:
        """Return the name of a provider."""
        return self._names_of(provider)[1]

    def _names_of(self, provider: str) -> tuple[str, str]:
        if provider not in self._known:
            self._known |= {provider: ("", ""), **self._read_names(provider)}
        return self._known[provider]

    def _read_names(self, provider: str) -> dict[str, tuple[str, str]]:
        asked = {"in_tree": provider}
        try:
            answer = send_request(
                self._asking, "GET", "/resource_providers", params=asked, version=_TREES_VERSION
            )
        except (exceptions.ClientException, exceptions.CommandError, ks_exceptions.ClientException):
            return {}  # the command itself succeeded, so its result is shown without names
        names = {each["uuid"]: each["name"] for each in answer["resource_providers"]}
        return {
            each["uuid"]: (names[each["root_provider_uuid"]], each["name"])
            for each in answer["resource_providers"]
        }


def print_warnings(asking: command.Command, warnings: Iterable[str]) -> None:
    """Print warnings to the standard error."""
    for each in warnings:
        print(f"Warning: {each}.", file=asking.app.stderr)


def add_repeated(parser: argparse.ArgumentParser, option: str, metavar: str, what: str) -> None:
    """Add an option that users can repeat. The value of the option is the list of all given texts."""
    parser.add_argument(
        option, metavar=metavar, action="append", default=[], help=f"{what} (may be repeated)"
    )


def parse_pairs(given: Iterable[str], option: str, what: str) -> dict[str, str]:
    """Parse options of the form ``<name>=<value>``, or raise CommandError."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise exceptions.CommandError(f"{option} {each}: <name>={what} is expected.")
        found[name] = value
    return found


def amounts_text(resources: Mapping[str, int]) -> str:
    """Return amounts by class in the format of osc-placement."""
    return ",".join(f"{name}={amount}" for name, amount in sorted(resources.items()))


def sum_amounts(parts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    """Return the sums of amounts by class."""
    total: Counter[str] = Counter()
    for each in parts:
        total.update(each)
    return total


def total_text(allocations: Mapping[str, Any]) -> str:
    """Return the sums of the amounts of all providers of an answer, in the format of osc-placement."""
    return amounts_text(sum_amounts(each["resources"] for each in allocations.values()))


class ProviderAmounts(FormattableColumn[Mapping[str, Any]]):
    """Amounts by resource provider: a text for tables, and the unchanged answer for JSON or YAML."""

    def __init__(self, allocations: Mapping[str, Any], names: HostNames) -> None:
        super().__init__(allocations)
        self._names = names

    def human_readable(self) -> str:
        """Return a line for each provider, with its name; with its uuid if the name is unknown."""
        return "\n".join(
            f"{self._names.provider_name(provider) or provider}: {amounts_text(each['resources'])}"
            for provider, each in self._value.items()
        )
