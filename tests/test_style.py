"""The patterns of the style checker: what each finds, and what it accepts."""

import pytest

from tests.style import comments_of_text, find_texts, problems_of_comment, problems_of_text


def rules(problems):
    return [rule for rule, _ in problems]


@pytest.mark.parametrize(
    "comment",
    [
        "cached, because each request needs the answer",
        "Locked, because two threads call the function",
        "written before the rename",
        "not read here: the answer comes later",
        "None for a new root",
        "None: the guest has ended",
        "also after a failure",
        "Sorted, so that equal requests are equal",
    ],
)
def test_a_comment_without_a_subject_is_found(comment):
    assert rules(problems_of_comment(comment)) == ["comment without a subject"]


@pytest.mark.parametrize(
    "comment",
    [
        "the answer is cached, because each request needs it",
        "Used and reserved pages have separate limits",
        "need once more for the second server",
        "set the limit before the write",
        "This errors only in a cluster",
    ],
)
def test_a_comment_with_a_subject_or_a_verb_is_accepted(comment):
    assert rules(problems_of_comment(comment)) == []


@pytest.mark.parametrize(
    "text", ["It runs again.", "There is no file.", "Those stay.", "These are old values."]
)
def test_a_comment_may_not_begin_with_a_pronoun(text):
    assert rules(problems_of_comment(text)) == ["pronoun without a noun"]


@pytest.mark.parametrize("text", ["These values are old.", "Both hosts have room.", "Such a guest waits."])
def test_a_pronoun_with_its_noun_is_accepted(text):
    assert rules(problems_of_comment(text)) == []


@pytest.mark.parametrize("text", ["The port serves both.", "While both are busy, a move waits."])
def test_both_needs_a_noun(text):
    assert rules(problems_of_text(text, opens=True)) == ["both without a noun"]


@pytest.mark.parametrize("text", ["The port serves both paths.", "The values are both old and wrong."])
def test_both_with_a_noun_is_accepted(text):
    assert rules(problems_of_text(text, opens=True)) == []


def test_a_field_needs_a_text():
    text = "Write the mask.\n\n:param path: the file.\n:raises OSError:\n:raises ValueError:\n    the mask."
    assert rules(problems_of_text(text, opens=True)) == ["field without text"]


def test_comments_of_a_text_file_are_found():
    source = """\
#!/bin/sh
# The rules of a unit,
# in two lines.
#   CAP_KILL   ends processes
[Service]
Type=simple  # one process
  # An indented comment.
Description=A service
color = "#FF0000"
"""
    assert [*comments_of_text(source)] == [
        (2, "The rules of a unit, in two lines."),
        (4, "CAP_KILL   ends processes"),
        (6, "one process"),
        (7, "An indented comment."),
        (8, "A service"),
    ]


def test_comments_of_samples_are_not_checked():
    texts = {str(text) for text in find_texts()}
    assert {"Makefile", "etc/packages/debian/rules", "etc/placement/placement-api.service"} < texts
    assert not [text for text in texts if text.endswith(".sample")]


def test_the_first_word_of_a_comment_in_a_text_file_is_checked():
    assert rules(problems_of_comment("What is kept is kept.", opens=True)) == ["opening word"]
    assert rules(problems_of_comment("What is kept is kept.")) == []
