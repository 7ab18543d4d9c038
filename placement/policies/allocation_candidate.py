"""Rule of ``/allocation_candidates``."""

from typing import Final

from placement.policies.base import operation

LIST: Final = "placement:allocation_candidates:list"

RULES: Final = [operation(LIST, "List allocation candidates.", ("GET", "/allocation_candidates"))]
