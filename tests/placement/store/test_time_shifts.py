"""Other times at which refused amounts fit, compared with a look at each instant."""

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.store.claims import MIN_STAY, TimeShifts, UnmetNeed, largest_amount, shifts_of_needs
from placement.store.time_profile import TimedAmount, TimeWindow, needed_holds
from placement.store.time_skyline import make_skylines
from tests.examples import examples

CAPACITY = 8
LAST = 6
KEYS = [("a", "VCPU"), ("b", "VCPU")]

timed = st.lists(
    st.builds(
        # a time unit is a stay, because no shorter stay is named
        lambda key, used, begin, length, has_begun: TimedAmount(
            "w", key[0], key[1], used, TimeWindow(begin * MIN_STAY, (begin + length) * MIN_STAY), has_begun
        ),
        st.sampled_from(KEYS),
        st.integers(1, 5),
        st.integers(0, LAST - 1),
        st.integers(1, 3),
        st.booleans(),
    ),
    max_size=6,
)


def used_at(key: tuple[str, str], amounts: Sequence[TimedAmount], instant: float) -> int:
    return sum(
        each.used for each in amounts if each.key == key and each.starts_at <= instant < each.window.ends_at
    )


@settings(max_examples=examples(300), deadline=None)
@given(
    amounts=timed,
    endless=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    wanted=st.tuples(st.integers(1, CAPACITY), st.integers(1, CAPACITY)),
)
def test_the_times_are_the_first_and_the_last_ones_with_room(
    amounts: list[TimedAmount], endless: tuple[int, int], wanted: tuple[int, int]
) -> None:
    holds = needed_holds(amounts, 0)
    needs = []
    for key, guests, amount in zip(KEYS, endless, wanted, strict=True):
        begun = sum(each.used for each in amounts if each.key == key and each.has_begun)
        used = guests + begun + holds.get(key, 0)
        needs.append(UnmetNeed(*key, amount, CAPACITY - used))
    skylines = make_skylines(amounts, holds.items())
    instants = [step * MIN_STAY for step in range(LAST + 5)]

    def fits_at(instant: float) -> bool:
        return all(
            used_at(key, amounts, instant) + guests + amount <= CAPACITY
            for key, guests, amount in zip(KEYS, endless, wanted, strict=True)
        )

    full = [instant for instant in instants if not fits_at(instant)]
    found = shifts_of_needs(needs, skylines, 0.0)
    if not full or full[-1] == instants[-1]:
        # the amounts fit now, or at no time
        assert found == TimeShifts()
    else:
        expected = None if full[0] == 0 or full[0] <= MIN_STAY else full[0]
        assert found == TimeShifts(full[-1] + MIN_STAY, expected)
    for need, guests in zip(needs, endless, strict=True):
        key = need.provider, need.resource_class
        room = CAPACITY - guests
        most = room - max(used_at(key, amounts, instant) for instant in instants)
        expected_amount = max(0, most) if most < need.wanted <= room else None
        assert largest_amount(need, skylines, 0.0) == expected_amount


def test_the_text_has_the_times_that_were_found() -> None:
    assert TimeShifts(60.0, 30.0).text == (
        "without an end time from 1970-01-01T00:01:00.000Z on, or now with an end time until"
        " 1970-01-01T00:00:30.000Z"
    )
    assert TimeShifts(None, 30.0).text == "now with an end time until 1970-01-01T00:00:30.000Z"
    assert TimeShifts().text == ""
    assert TimeShifts(60.0).shown_times == {
        "earliest_start": "1970-01-01T00:01:00.000Z",
        "latest_end": None,
    }
    need = UnmetNeed("a", "VCPU", 1, 0)
    assert shifts_of_needs([need], {}, math.pi) == TimeShifts()
