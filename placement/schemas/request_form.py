"""What bodies ask for, and the seam for ways to ask without a query."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from oslo_config import cfg

from placement.microversion import Microversion
from placement.schemas.base import StrictSchema
from placement.search.request import CandidatesRequest


@dataclass(frozen=True, slots=True)
class AskedCandidates:
    """What a body asks for: a request, and the microversion in whose grammar it is.

    Of a flavor there may be a request to fall back to, and warnings of what was not understood.
    """

    request: CandidatesRequest
    version: Microversion
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()


class RequestForm(Protocol):
    """A way to ask without a query: the member of bodies that has the name of its entry point."""

    schema: ClassVar[type[StrictSchema]]

    def __init__(self, conf: cfg.ConfigOpts) -> None: ...

    def translate(self, given: dict[str, Any], *, strict: bool) -> AskedCandidates:
        """Translate the member.

        :param strict: whether anything that is not understood is refused, rather than ignored with a warning.
        :raises InvalidRequest: naming what is wrong with it.
        """


RequestForms = Mapping[str, RequestForm]
"""The forms by the members of bodies that they translate."""
