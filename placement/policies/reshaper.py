"""Rule of ``/reshaper``."""

from typing import Final

from placement.policies.base import SERVICE, operation

RESHAPE: Final = "placement:reshaper:reshape"

RULES: Final = [
    operation(
        RESHAPE, "Move inventories and allocations between providers.", ("POST", "/reshaper"), check=SERVICE
    )
]
