"""The resource ``/ext/v1/resource_providers/{uuid}/attributes``."""

from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT
from placement.api.resource_providers import existing_provider, missing_provider_first, path_uuid
from placement.policies import ext as rules
from placement.read_model.provider import Attribute
from placement.schemas import resource_provider as schemas
from placement.store import provider_properties as store

blueprint = Blueprint("ext_attributes", __name__)

_PATH: Final = f"{EXT}/resource_providers/<uuid>/attributes"
_BODY: Final = schemas.AttributesBody()
# up to this number, a float represents each integer exactly
_MAX_INTEGER: Final = 2.0**53


@api_operation(blueprint, "GET", _PATH, rules.ATTRIBUTES, writes_json=True)
def list_of_provider(call: ApiRequest, uuid: str) -> Response:
    """List the attributes of a provider."""
    with call.service.model.fresh_view() as view:
        provider = existing_provider(view.snapshot, uuid)
        return _attributes_answer(call, provider.attributes, provider.generation)


@api_operation(blueprint, "PUT", _PATH, rules.CHANGE_ATTRIBUTES, reads_json=True, writes_json=True)
def replace_of_provider(call: ApiRequest, uuid: str) -> Response:
    """Replace the attributes of a provider."""
    known = path_uuid(uuid)
    with missing_provider_first(call, uuid):
        body = call.parse_body(_BODY)
    wanted: Mapping[str, Attribute] = body["attributes"]
    expected: int = body["resource_provider_generation"]
    generation = call.service.database.write(lambda tx: store.replace_attributes(tx, known, expected, wanted))
    return _attributes_answer(call, wanted, generation)


def _attributes_answer(call: ApiRequest, attributes: Mapping[str, Attribute], generation: int) -> Response:
    return call.json_answer(
        {"attributes": shown_attributes(attributes), "resource_provider_generation": generation}
    )


def shown_attributes(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """Return attributes, by name, as answers show them. Whole numbers are shown as integers."""
    return {name: _shown_value(value) for name, value in sorted(attributes.items())}


def _shown_value(value: Attribute) -> str | float | int:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _MAX_INTEGER
    return int(value) if whole else value
