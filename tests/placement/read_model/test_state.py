"""Tests of the state by which a worker follows the database."""

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.follower import ModelState
from placement.read_model.provider import Provider
from placement.read_model.rows import BucketFingerprint, NameTable, ProviderVersion

STAMPS = st.integers(0, 2**33)
STEPS = st.lists(st.tuples(st.integers(1, 4), STAMPS) | st.sets(st.integers(1, 4)) | st.none())


@given(STEPS)
def test_a_fingerprint_covers_the_current_bucket(
    steps: list[tuple[int, int] | set[int] | None],
) -> None:
    state, stamps = ModelState(NameTable([], [])), dict[int, int]()
    for step in steps:
        if isinstance(step, set):
            state.keep_only(7, step)
            stamps = {provider_id: seq for provider_id, seq in stamps.items() if provider_id in step}
        elif step is not None:
            provider_id, seq = step
            provider = Provider(
                provider_id, str(provider_id), "", 0, None, 1, 0.0, {}, {}, frozenset(), frozenset()
            )
            state.note_stamp(ProviderVersion(provider_id, "", "", 0, None, 1, 0.0, 7, seq, 0), provider)
            stamps[provider_id] = seq
        else:
            assert state.bucket_fingerprint(8) == (0, 0)
            expected = BucketFingerprint(len(stamps), sum(seq % 2**32 for seq in stamps.values()))
            assert state.bucket_fingerprint(7) == expected
