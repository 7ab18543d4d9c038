"""Tests of writing a model to its file and reading it: the model is the same, and any other content is
refused.
"""

import hashlib
import json
import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.db.buckets import bucket_of
from placement.read_model.columns import DamagedFile, WritableModel, decode_model, encode_model
from placement.read_model.snapshot import ModelSnapshot
from tests.examples import examples
from tests.placement.read_model.builders import EXAMPLE, NAMES, content, providers

_HEADER = len(b"placement read model 3\n")


@st.composite
def models(draw: st.DrawFn) -> WritableModel:
    """A strategy for models with up to nine providers."""
    found = []
    # the ids of a tree follow one another, or those of other trees lie between them
    adjacent = draw(st.booleans())
    for provider_id in (1, 2, 3, *draw(st.sets(st.integers(4, 9)))):
        provider = draw(providers(provider_id))
        attributes = draw(st.dictionaries(st.sampled_from(("rack", "weight")), st.text() | st.floats(-9, 9)))
        name = draw(st.text(max_size=5)) + provider.name
        seq = draw(st.integers(1, 1 << 62))
        count = draw(st.sampled_from(sorted({min(1, len(provider.inventories)), len(provider.inventories)})))
        times = tuple(draw(st.lists(st.floats(0, 9), min_size=count, max_size=count)))
        if adjacent:
            root = provider.root_id
            provider = replace(
                provider,
                id=10 * root + (provider_id - root) // 3,
                root_id=10 * root,
                parent_id=None if provider.parent_id is None else 10 * root,
            )
        changed = replace(
            provider, attributes=attributes, name=name, described_seq=seq, inventory_times=times
        )
        found.append(changed)
    stamps = {each.id: each.described_seq + draw(st.integers(0, 1)) for each in found}
    counters = {bucket: draw(st.integers(0, (1 << 62))) for bucket in range(3)}
    expiry = draw(st.just(math.inf) | st.floats(0, 1e10))
    return WritableModel("1/2", NAMES, counters, dict.fromkeys(counters, 4), expiry, found, stamps)


def written(model: WritableModel) -> bytes:
    return b"".join(encode_model(model, lambda: None))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models())
def test_a_written_model_is_read_unchanged(model: WritableModel) -> None:
    history, state = decode_model(written(model))
    assert history == model.history
    assert {each.id: each for each in state.snapshot} == {each.id: each for each in model.providers}
    assert content(state.snapshot) == content(ModelSnapshot(model.providers))  # with all its indexes
    assert {id_: seq for some in state.stamps.values() for id_, seq in some.items()} == model.stamps
    for bucket, stamps in state.stamps.items():
        assert {bucket_of(state.snapshot.providers[each].uuid) for each in stamps} <= {bucket}
    assert (state.counters, state.deletions) == (model.counters, model.deletions)
    assert (state.next_expiry, state.names.__dict__) == (model.next_expiry, NAMES.__dict__)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_truncated_or_changed_content_is_damaged(data: st.DataObject) -> None:
    whole = written(EXAMPLE)
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedFile):
        decode_model(whole[:at])
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedFile):
        decode_model(bytes(changed))


def signed(header: Any, columns: bytes) -> bytes:
    """Content with a correct format and digest, and with wrong values."""
    encoded = json.dumps(header).encode()
    content = b"placement read model 3\n" + len(encoded).to_bytes(8, "big") + encoded + columns
    return content + hashlib.sha256(content).digest()


def taken_apart(content: bytes) -> tuple[Any, bytes]:
    length = int.from_bytes(content[_HEADER : _HEADER + 8], "big")
    start = _HEADER + 8
    return json.loads(content[start : start + length]), content[start + length : -32]


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_content_with_a_right_checksum_does_no_harm(data: st.DataObject) -> None:
    header, columns = taken_apart(written(EXAMPLE))
    changed = bytearray(columns)
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=4)):
        changed[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(header)))
        header[key] = data.draw(
            st.none() | st.integers() | st.text() | st.lists(st.lists(st.integers(), max_size=3))
        )
    try:
        _, state = decode_model(signed(header, bytes(changed)))
    except DamagedFile:
        return
    content(state.snapshot)
    for provider in state.snapshot:
        assert list(state.snapshot.lineage_of(provider))[-1].id == provider.root_id


def column(name: str, *values: int) -> Callable[[Any, bytes], bytes]:
    """Overwrite the first values of a column of numbers."""

    def change(header: Any, columns: bytes) -> bytes:
        start = 0
        for each, kind, length in header["columns"]:
            if each == name:
                new = array(kind, values).tobytes()
                return columns[:start] + new + columns[start + len(new) :]
            start += length
        raise KeyError(name)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (column("id", 2, 1), "order of their ids"),
        (column("pattern.root", 0, 0), "in different trees"),
        (column("pattern.parent", -1, 1), "in different trees"),
        (column("pattern.parent", 0, 2), "does not exist"),
        (column("pattern.root", 0, 2), "does not exist"),
        (column("pattern.parent", 0, -99), "IndexError"),
        (column("pattern.traits", 99), "IndexError"),
        (column("pattern", 99), "IndexError"),
        (column("bucket", 256), "IndexError"),
        (column("used.sizes", 5), "wrong number of members"),
    ],
)
def test_the_error_names_the_inconsistency(change: Callable[[Any, bytes], bytes], reason: str) -> None:
    header, columns = taken_apart(written(EXAMPLE))
    with pytest.raises(DamagedFile, match=reason):
        decode_model(signed(header, change(header, columns)))


@pytest.mark.parametrize("ids", [(1, 2, 3), (2, 1, 3)])
def test_parents_in_a_circle_are_refused(ids: tuple[int, int, int]) -> None:
    root, one, other = ids
    example = EXAMPLE.providers[0]
    circle = [
        replace(example, id=root, root_id=root),
        replace(example, id=one, root_id=root, parent_id=other, uuid="u2"),
        replace(example, id=other, root_id=root, parent_id=one, uuid="u3"),
    ]
    stamps = dict.fromkeys(ids, 4)
    with pytest.raises(DamagedFile, match="its own ancestor"):
        decode_model(written(replace(EXAMPLE, providers=circle, stamps=stamps)))


def test_another_version_is_refused() -> None:
    with pytest.raises(DamagedFile, match="another version"):
        decode_model(written(EXAMPLE).replace(b"model 3", b"model 4"))
