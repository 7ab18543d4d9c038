"""Paragraphs of pages are wrapped at 100 characters; code, tables and links keep their lines."""

import pytest

from tests.paragraphs import find_long_paragraphs, find_paragraphs, wrap_page

WORDS = " ".join(["four"] * 40)


def test_a_long_paragraph_is_broken_at_100_characters() -> None:
    lines = wrap_page(f"# Title\n\n{WORDS}\n\nshort\n").split("\n")
    assert lines == ["# Title", "", " ".join(["four"] * 20), " ".join(["four"] * 20), "", "short", ""]


def test_lines_of_an_item_are_indented_below_its_text() -> None:
    lines = wrap_page(f"- one\n- {WORDS}\n  {WORDS}\n10. {WORDS}").split("\n")
    assert lines[0] == "- one"
    assert lines[1].startswith("- four")
    assert all(line.startswith("  four") for line in lines[2:6])
    assert lines[6].startswith("10. four")
    assert lines[7].startswith("    four")
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    "text",
    [
        f"```bash\n{WORDS}\n```",
        f"```{{note}}\n{WORDS}\n```",
        f"| {WORDS} |",
        f"# {WORDS}",
        f"    {WORDS}",
        f"<!-- {WORDS} -->",
        f"> {WORDS}",
        f"`{WORDS}`",
        f"[{WORDS}](page.md)",
        f"{WORDS}  \nfour",
    ],
)
def test_code_tables_headings_quotations_and_links_keep_their_lines(text: str) -> None:
    page = f"before\n\n{text}\n\nafter\n"
    assert wrap_page(page) == page
    assert not [*find_long_paragraphs(page)]


def test_short_paragraphs_keep_their_lines() -> None:
    page = f"one\ntwo\n\n{WORDS}\n"
    assert wrap_page(page).startswith("one\ntwo\n\n")


@pytest.mark.parametrize("marker", ["-", "+", "1.", "#", ">", "|", "="])
def test_no_line_begins_with_a_marker_of_a_list_or_heading(marker: str) -> None:
    text = " ".join(["four", marker] * 30)
    lines = wrap_page(text).split("\n")
    assert len(lines) > 1
    assert all(line.startswith("four") for line in lines)
    assert " ".join(lines) == text


def test_wrapped_pages_have_no_long_paragraph_and_the_same_words() -> None:
    page = f"{WORDS}\n- {WORDS} `{WORDS}` {WORDS}\n\n  {WORDS}\n"
    wrapped = wrap_page(page)
    assert wrapped.split() == page.split()
    assert not [*find_long_paragraphs(wrapped)]
    assert [each.text for each in find_paragraphs(wrapped)] == [each.text for each in find_paragraphs(page)]
