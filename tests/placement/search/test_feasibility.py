"""Tests of quick proofs that needs cannot fit, which never exclude a possible assignment."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from placement.search.conditions import needs_of
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.rules import fits_at_all
from tests.placement.search.snapshots import Spec, build


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    amounts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    barred=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6),
    isolate=st.booleans(),
)
def test_no_possible_request_is_ruled_out(
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


def test_taken_amounts_count() -> None:
    (provider,) = build(Spec("dev", None, {"A": 4}))
    needs = needs_of(CandidatesRequest((RequestGroup("_1", {"A": 1}), RequestGroup("_2", {"A": 1}))))
    options = [[provider], [provider]]
    assert fits_at_all(needs, options, False, {(provider.id, "A"): 2})
    assert not fits_at_all(needs, options, False, {(provider.id, "A"): 3})


def ruled_out(asked: list[tuple[int, str]], **sizes: int) -> bool:
    """Whether a quick proof shows that groups with these amounts, each with a choice of devices, do not fit
    together.
    """
    providers = {
        at.name: at for at in build(*(Spec(name, None, {"A": size}) for name, size in sizes.items()))
    }
    groups = (RequestGroup(f"_{index}", {"A": amount}) for index, (amount, _) in enumerate(asked))
    options = [[providers[name] for name in names] for _, names in asked]
    return not fits_at_all(needs_of(CandidatesRequest(tuple(groups))), options, False)


def test_amounts_that_do_not_add_up_at_their_providers_are_ruled_out() -> None:
    """The devices have enough units in total, and enough places for each amount alone."""
    assert ruled_out([(3, "xy"), (3, "xy"), (2, "xy")], x=4, y=4)
    assert not ruled_out([(3, "xy"), (3, "xy"), (2, "xy")], x=4, y=5)


def test_a_need_with_more_options_does_not_hide_others_without_room() -> None:
    assert ruled_out([(3, "xy"), (3, "xy"), (2, "xy"), (1, "xyz")], x=4, y=4, z=9)
    assert ruled_out([(3, "x"), (3, "xy"), (2, "xy"), (1, "xyz")], x=4, y=4, z=9)
    assert not ruled_out([(3, "xy"), (3, "xy"), (2, "xyz"), (1, "xyz")], x=4, y=4, z=9)


def test_too_many_groups_for_the_places_are_ruled_out() -> None:
    assert ruled_out([(3, "xy"), (3, "xy"), (3, "xy")], x=5, y=5)
    assert not ruled_out([(3, "xy"), (3, "xy"), (3, "xy")], x=5, y=6)
    assert ruled_out([(2, "x"), (2, "x"), (1, "y")], x=3, y=9)
