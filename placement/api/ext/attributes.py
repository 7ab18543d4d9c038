"""``/ext/v1/resource_providers/{uuid}/attributes``."""

from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, operation
from placement.api.paths import EXT
from placement.api.resource_providers import about, existing, path_uuid
from placement.policies import ext as rules
from placement.read_model.provider import Attribute
from placement.schemas import resource_provider as schemas
from placement.store import attributes as store

blueprint = Blueprint("ext_attributes", __name__)

_PATH: Final = f"{EXT}/resource_providers/<uuid>/attributes"
_BODY: Final = schemas.AttributesBody()
_MAX_INTEGER: Final = 2.0**53


@operation(blueprint, "GET", _PATH, rules.ATTRIBUTES, writes_json=True)
def list_of_provider(call: ApiRequest, uuid: str) -> Response:
    """What is kept with a provider."""
    with call.service.model.fresh_view() as view:
        provider = existing(view.snapshot, uuid)
        return _answer(call, provider.attributes, provider.generation)


@operation(blueprint, "PUT", _PATH, rules.CHANGE_ATTRIBUTES, reads_json=True, writes_json=True)
def replace_of_provider(call: ApiRequest, uuid: str) -> Response:
    """Make this all that is kept with a provider."""
    known = path_uuid(uuid)
    with about(call, uuid):
        body = call.body(_BODY)
    wanted: Mapping[str, Attribute] = body["attributes"]
    expected: int = body["resource_provider_generation"]
    generation = call.service.database.write(lambda tx: store.replace(tx, known, expected, wanted))
    return _answer(call, wanted, generation)


def _answer(call: ApiRequest, attributes: Mapping[str, Attribute], generation: int) -> Response:
    return call.answer({"attributes": shown(attributes), "resource_provider_generation": generation})


def shown(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """Attributes as answers show them, by name."""
    return {name: _shown(value) for name, value in sorted(attributes.items())}


def _shown(value: Attribute) -> str | float | int:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _MAX_INTEGER
    return int(value) if whole else value
