"""What guests and providers are called in messages."""

import pytest

from compute_agent.drivers.base import Guest
from compute_agent.naming import called

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
    assert called(name, UUID) == words
    assert str(Guest(UUID, "process", name, 1)) == words
