"""The connection to close first, compared with a search through all of them."""

from hypothesis import given
from hypothesis import strategies as st

from placement.server.client_poll import WaitingConnections

MOST = 6
STEPS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([True, False, None])), max_size=40)


@given(STEPS)
def test_the_first_to_close_has_waited_longest_in_its_state(steps: list[tuple[int, bool | None]]):
    waiting = WaitingConnections(MOST)
    known: dict[int, tuple[bool, int]] = {}  # at rest or not, and since when
    for time, (fd, at_rest) in enumerate(steps):
        if at_rest is None:
            waiting.discard(fd)
            known.pop(fd, None)
        else:
            waiting.put(fd, at_rest=at_rest)
            if fd not in known or known[fd][0] is not at_rest:
                known[fd] = at_rest, time
        at_rest_go = any(rests for rests, _ in known.values()) and (
            sum(not rests for rests, _ in known.values()) <= MOST // 2
        )
        going = {since: fd for fd, (rests, since) in known.items() if rests is at_rest_go}
        assert waiting.first_to_close() == (going[min(going)] if going else None)
