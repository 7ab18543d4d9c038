"""Has the request for candidates in a body, and the interface of forms, which replace query strings.

The module is separate from ``candidates``, because extensions with forms import it, and ``candidates`` loads
these extensions while it is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from oslo_config import cfg

from placement.microversion import Microversion
from placement.schemas.base import StrictSchema
from placement.search.request import CandidatesRequest


@dataclass(frozen=True, slots=True)
class AskedCandidates:
    """The request for candidates in a body, and the microversion with which the body is read.

    A flavor can also have a fallback request, and warnings about ignored parts of the flavor.
    """

    request: CandidatesRequest
    version: Microversion
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()


class RequestForm(Protocol):
    """A field of a body that replaces the query string of a request for candidates, such as a flavor.

    The entry point of the form has the same name as the field.
    """

    schema: ClassVar[type[StrictSchema]]

    def __init__(self, conf: cfg.ConfigOpts) -> None: ...

    def translate(self, given: dict[str, Any], *, strict: bool) -> AskedCandidates:
        """Translate the value of this field in a body into a request.

        :param strict: whether unknown parts are errors; otherwise they are ignored with a warning.
        :raises InvalidRequest: the value is wrong; the message has the reason.
        """


RequestForms = Mapping[str, RequestForm]
"""The registered forms, by the names of their fields in bodies."""
