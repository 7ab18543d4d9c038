"""The resource ``/reshaper``."""

from flask import Blueprint, Response

from placement import microversion
from placement.api.allocations import claim_of
from placement.api.call import ApiRequest, api_operation
from placement.policies import rest as rules
from placement.schemas import allocation as schemas
from placement.store import reshaper as store
from placement.store.reshaper import NewInventories

blueprint = Blueprint("reshaper", __name__)


@api_operation(blueprint, "POST", "/reshaper", rules.RESHAPE, since=microversion.RESHAPER, reads_json=True)
def reshape_providers(call: ApiRequest) -> Response:
    """Move inventories and allocations between providers, in one transaction."""
    body = call.parse_body(schemas.reshaper_body(call.version))
    wanted = {
        uuid: NewInventories(
            each["resource_provider_generation"],
            {name: inventory["values"] for name, inventory in each["inventories"].items()},
        )
        for uuid, each in body["inventories"].items()
    }
    claims = [
        claim_of(call.service.conf, call.version, uuid, each) for uuid, each in body["allocations"].items()
    ]
    store.reshape_providers(call.service.database, wanted, claims)
    return call.empty_answer()
