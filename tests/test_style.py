"""The patterns of the style checker: what each finds, and what it accepts."""

import pytest

from tests.style import problems_of_comment, problems_of_text


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
