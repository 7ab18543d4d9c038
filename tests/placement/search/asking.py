"""Searches a snapshot with a query string, and shows the candidates in a short form."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

from placement.microversion import Microversion
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import AllocationCandidate, Offer, candidates_of
from placement.search.rendering import ProviderSummaries, render_pieces
from placement.search.request import CandidatesRequest
from tests.placement.search.brute import Found
from tests.placement.search.snapshots import name_to_uuid


def ask(snapshot: ModelSnapshot, query: str, minor: int = 39) -> list[str]:
    """The candidates for a query at microversion 1.``minor``, as sorted texts.

    ``{name}`` in the query stands for the uuid of the provider or aggregate with this name. The text of a
    candidate is, for example, ``cn1(MEMORY_MB:1024, VCPU:1) + ss1(DISK_GB:5)``.
    """
    return sorted(readable(snapshot, candidate) for candidate in candidates(snapshot, query, minor))


def find(snapshot: ModelSnapshot, request: CandidatesRequest, **options: Any) -> list[AllocationCandidate]:
    """The candidates of a request one by one. The options are those of the search."""
    return list(candidates_of(find_candidates(snapshot, request, **options)))


def candidates(snapshot: ModelSnapshot, query: str, minor: int = 39) -> list[AllocationCandidate]:
    """The candidates as objects."""
    names = [part.split("}")[0] for part in query.split("{")[1:]]
    query = query.format(**{name: name_to_uuid(name) for name in names})
    return find(snapshot, parse_candidates(parse_qsl(query, keep_blank_values=True), (1, minor)))


def readable(snapshot: ModelSnapshot, candidate: AllocationCandidate) -> str:
    parts = {
        snapshot.providers[provider_id].name: ", ".join(
            f"{name}:{amount}" for name, amount in sorted(amounts.items())
        )
        for provider_id, amounts in candidate.resources.items()
    }
    return " + ".join(f"{name}({amounts})" for name, amounts in sorted(parts.items()))


def mappings(snapshot: ModelSnapshot, candidate: AllocationCandidate) -> dict[str, list[str]]:
    """The names of the providers that serve the group with each suffix."""
    return {
        suffix: sorted(snapshot.providers[provider_id].name for provider_id in provider_ids)
        for suffix, provider_ids in candidate.mappings.items()
    }


def comparable(candidate: AllocationCandidate) -> Found:
    return (
        frozenset(
            (provider_id, name, amount)
            for provider_id, amounts in candidate.resources.items()
            for name, amount in amounts.items()
        ),
        frozenset(
            (suffix, provider_id)
            for suffix, provider_ids in candidate.mappings.items()
            for provider_id in provider_ids
        ),
    )


def render(
    snapshot: ModelSnapshot,
    offers: Sequence[Offer],
    version: Microversion,
    kept: ProviderSummaries | None = None,
) -> bytes:
    """Return the whole answer with these candidates, without a limit of time."""
    summaries = ProviderSummaries() if kept is None else kept
    return b"".join(render_pieces(snapshot, offers, version, summaries, SearchBudget()))
