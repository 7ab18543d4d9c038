"""What the quick look at needs and options rules out, and what it has to let pass."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from placement.candidates.feasibility import fits_at_all
from placement.candidates.needs import needs_of
from placement.candidates.request import CandidatesRequest, RequestGroup
from tests.placement.candidates.snapshots import Spec, build


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    amounts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    barred=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6),
    isolate=st.booleans(),
)
def test_nothing_possible_is_ruled_out(
    sizes: list[int], amounts: list[int], barred: set[tuple[int, int]], isolate: bool
) -> None:
    providers = list(build(*(Spec(f"dev{index}", None, {"A": size}) for index, size in enumerate(sizes))))
    request = CandidatesRequest(
        tuple(RequestGroup(f"_{index}", {"A": amount}) for index, amount in enumerate(amounts))
    )
    options = [
        [
            provider
            for place, provider in enumerate(providers)
            if sizes[place] >= amount and (need, place) not in barred
        ]
        for need, amount in enumerate(amounts)
    ]
    possible = any(
        all(
            sum(amount for amount, at in zip(amounts, ways, strict=True) if at is provider)
            <= provider.inventories["A"].total
            for provider in providers
        )
        and (not isolate or len({at.id for at in ways}) == len(ways))
        for ways in product(*options)
    )
    fits = fits_at_all(needs_of(request), options, isolate)
    assert fits or not possible
    if isolate and len(amounts) > 1:
        assert fits == possible  # a matching decides this exactly


def test_what_is_taken_already_counts() -> None:
    (provider,) = build(Spec("dev", None, {"A": 4}))
    needs = needs_of(CandidatesRequest((RequestGroup("_1", {"A": 1}), RequestGroup("_2", {"A": 1}))))
    options = [[provider], [provider]]
    assert fits_at_all(needs, options, False, {(provider.id, "A"): 2})
    assert not fits_at_all(needs, options, False, {(provider.id, "A"): 3})
