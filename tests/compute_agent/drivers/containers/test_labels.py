"""Settings in the labels of containers."""

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.containers.container_state import GUEST, KEYS, parse_labels, trusted_labels
from compute_agent.drivers.foreign.declared import BadDeclarationError
from compute_agent.model.guest_settings import SETTING_NAMES, ThreadPolicy

UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
texts = st.dictionaries(
    st.one_of(st.sampled_from([GUEST, "compute-agent.uuid", "compute-agent.vcpus", *KEYS]), st.text()),
    st.one_of(st.sampled_from(["true", "1", UUID]), st.text()),
    max_size=8,
)


def test_each_setting_has_a_label():
    assert sorted(KEYS.values()) == sorted(SETTING_NAMES)
    assert KEYS["compute-agent.class"] == "qos_class"
    assert KEYS["compute-agent.blockio-class"] == "blockio_class"


def test_the_settings_are_read():
    found = parse_labels(
        {
            GUEST: "True",
            "compute-agent.uuid": UUID.upper(),
            "compute-agent.vcpus": "4",
            "compute-agent.thread-policy": "isolate",
            "compute-agent.class": "",
            "compute-agent.colour": "red",
            "maintainer": "x",
        },
        {},
    )
    assert (found.guest_uuid, found.vcpus) == (UUID, 4)
    assert found.declared == {"thread_policy": ThreadPolicy.ISOLATE}
    assert found.problems == ("label compute-agent.colour is not a setting of guests",)


@pytest.mark.parametrize("labels", [{}, {GUEST: "false"}, {GUEST: " FALSE"}, {"compute-agent.class": "BE"}])
def test_without_the_label_a_container_is_no_guest(labels):
    assert parse_labels(labels, {}) is None


def test_a_label_with_another_value_than_that_of_the_image_counts():
    image = {"compute-agent.class": "LSR", "compute-agent.priority": "3", GUEST: "false"}
    found = parse_labels({**image, GUEST: "true", "compute-agent.class": "BE"}, image)
    assert found.declared == {"qos_class": "BE"}
    assert found.problems == ("label compute-agent.priority has no effect: it is of the image",)


def test_an_image_cannot_make_a_guest():
    with pytest.raises(BadDeclarationError, match="of its image"):
        parse_labels({GUEST: "true"}, {GUEST: "true"})


@pytest.mark.parametrize("text", ["L3:0=f\x1b[2J", "\ud800", "L3\u2028", "\u202e0=f", "a\0"])
def test_an_annotation_that_a_terminal_cannot_show_has_no_effect(text):
    """A label is JSON, which may have halves of characters that no encoding has."""
    found = parse_labels({GUEST: "true", "compute-agent.resctrl": text}, {})
    assert found.declared == {}
    (problem,) = found.problems
    assert problem.isprintable()
    assert problem.endswith("has no effect: only printable characters")


def test_an_annotation_may_have_several_lines():
    text = '{\n\t"l3": "0-1"\r\n}'
    assert parse_labels({GUEST: "true", "compute-agent.resctrl": text}, {}).declared == {"resctrl": text}


@given(texts, texts)
def test_any_labels_are_settings_or_a_reason_in_one_line(labels, image):
    with contextlib.suppress(BadDeclarationError):
        found = parse_labels({**image, **labels}, image)
        if found is not None:
            assert not found.guest_uuid or str(uuid.UUID(found.guest_uuid)) == found.guest_uuid
            assert all(problem.isprintable() for problem in found.problems)
            assert len(found.problems) <= 41


@given(texts, texts)
def test_labels_of_the_image_are_never_trusted(labels, image):
    found = trusted_labels({**image, **labels}, image)
    assert not found.items() & image.items()
