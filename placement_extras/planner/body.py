"""The body of ``POST /ext/v1/capacity``."""

from typing import Any, Final

from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas import explanation
from placement.schemas.base import ArrayField, BooleanField, IntegerField, ObjectField, StringField, UuidField
from placement.schemas.request_form import AskedCandidates, RequestForms

MAX_FLAVORS: Final = 32
MAX_WITHOUT: Final = 1024
MAX_PROPORTION: Final = 1_000_000


class FlavorSchema(explanation.AskingSchema):
    """What one guest takes."""

    name = StringField(required=True, min_length=1, max_length=255)
    proportion = IntegerField(1, MAX_PROPORTION, load_default=None)


class CapacityBody(explanation.VersionedSchema):
    """What is to be counted: flavors, whose queries are of a microversion, on all hosts but some.

    Whether those who are on these find a place elsewhere is asked by ``displaced``, and by which moves there
    would be room for one more of each flavor by ``moves``.
    """

    flavors = ArrayField(ObjectField(FlavorSchema), required=True, min_items=1, max_items=MAX_FLAVORS)
    without = ArrayField(UuidField(), unique=True, load_default=list, max_items=MAX_WITHOUT)
    displaced = BooleanField(load_default=False)
    moves = BooleanField(load_default=False)


def parse(body: dict[str, Any], forms: RequestForms) -> tuple[dict[str, AskedCandidates], Microversion]:
    """What such a body asks for by the names of its flavors, and the microversion that they are of.

    :param forms: translate flavors that are no queries.
    :raises InvalidRequest: naming the flavor, and what is wrong with it.
    """
    if body["displaced"] and not body["without"]:
        raise InvalidRequest(
            "'displaced' asks about those on the hosts that 'without' names, and it names none."
        )
    found: dict[str, AskedCandidates] = {}
    for flavor in body["flavors"]:
        name = flavor["name"]
        if name in found:
            raise InvalidRequest(f"Flavor {name!r} is there twice.")
        try:
            common = {each: body[each] for each in ("microversion", "strict")}
            found[name] = explanation.parse({**flavor, **common}, forms)
        except InvalidRequest as error:
            raise InvalidRequest(f"Flavor {name!r}: {error.detail}", error.code) from None
    return found, explanation.version_of(body)
