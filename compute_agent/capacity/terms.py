"""The sums of what is offered, term by term, as the command line shows them."""

from __future__ import annotations

from typing import Any


def term_row(provider: str, words: str, amount: float, unit: str) -> dict[str, Any]:
    """A term of the sum of a provider, by the columns of ``compute-agent capacity show``."""
    return {"provider": provider, "term": words, "amount": round(amount, 2), "unit": unit}
