"""Tests of the names of guests and providers in messages."""

import pytest

from compute_agent.model.guest import Guest
from compute_agent.model.messages import full_name, printable_text

UUID = "11111111-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("web-1", f"web-1 ({UUID})"),
        ("größe 1", f"größe 1 ({UUID})"),
        (UUID, UUID),
        ("", UUID),
        ("a\n2026-01-01 CRITICAL: all is lost", rf"'a\n2026-01-01 CRITICAL: all is lost' ({UUID})"),
    ],
)
def test_a_name_stands_beside_the_uuid_on_one_line(name, words):
    assert full_name(name, UUID) == words
    assert str(Guest(UUID, "process", name, 1)) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 1", "größe 1"),
        ("a\nb\x1b[2Jc\udcff\u202e\x7f", "a\ufffdb\ufffd[2Jc\ufffd\ufffd\ufffd"),
        ("x" * 1000, "x" * 1000),
        ("x" * 1001, "x" * 1000 + "..."),
    ],
)
def test_foreign_text_is_shown_on_one_line(text, shown):
    assert printable_text(text) == shown
