"""What our commands of ``openstack`` have in common: asking the service, and reading options."""

from collections.abc import Iterable, Mapping
from typing import Any

from osc_lib import exceptions
from osc_lib.command import command


def request(asking: command.Command, method: str, path: str, **options: Any) -> Any:
    """What the service answers, read as JSON; None if it answers nothing.

    :param options: as ``requests`` takes them; ``version`` is another microversion than the client's.
    :raises CommandError: the answer is none of a Placement service.
    """
    client: Any = asking.app.client_manager.placement  # type: ignore[attr-defined]  # osc-placement puts it there
    try:
        answer = client.request(method, path, **options)  # which reads errors as JSON, and expects its fields
        return answer.json() if answer.content else None
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
