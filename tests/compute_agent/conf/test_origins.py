"""Tests of the values of options in force, and of the file from which each value comes."""

import pytest

from compute_agent import conf
from compute_agent.conf.origins import (
    DEFAULT,
    MAX_CHANGES,
    OptionOrigin,
    OptionValue,
    changed_values,
    option_values,
    settings,
)


@pytest.fixture
def load(tmp_path):
    """A function that loads files with these texts. Later files override earlier files."""

    def load(*texts):
        files = []
        for number, text in enumerate(texts):
            files.append(tmp_path / f"{number}.conf")
            files[-1].write_text(text)
        return conf.load([], [str(file) for file in files])

    return load


def found(loaded):
    return {(each.section, each.option): each for each in settings(loaded)}


def test_a_value_comes_from_the_last_file_that_has_it(load, tmp_path):
    one = "[compute]\ncpu_dedicated_set = 2-3\ncpu_shared_set = 0-1\n"
    options = found(load(one, "[Compute]\ncpu_dedicated_set = 4-7\n"))
    assert options["compute", "cpu_dedicated_set"] == OptionOrigin(
        "compute", "cpu_dedicated_set", "4-7", f"{tmp_path}/1.conf"
    )
    assert options["compute", "cpu_shared_set"].origin == f"{tmp_path}/0.conf"
    assert options["compute", "resource_provider_name"].origin == DEFAULT


def test_each_option_is_there_once(load):
    every = [
        (each.section, each.option)
        for each in settings(load("[watermark:a]\nmetric = cpu_usage\nevict = 9%\n"))
    ]
    assert len(set(every)) == len(every)
    assert {("watermark:a", "metric"), ("watermark:a", "evict"), ("DEFAULT", "debug")} <= set(every)


def test_the_environment_is_an_origin(load, monkeypatch):
    monkeypatch.setenv("OS_COMPUTE__CPU_SHARED_SET", "0")
    setting = found(load("[compute]\ncpu_shared_set = 1\n"))["compute", "cpu_shared_set"]
    assert setting.value == "0"
    assert setting.origin == "environment OS_COMPUTE__CPU_SHARED_SET"


def test_secrets_are_not_shown(load):
    text = "[placement]\nauth_type = password\npassword = sesame\n"
    misspelt = "[placement]\nauth_type = passwort\npassword = sesame\n"
    for each in (text, misspelt):
        assert "sesame" not in str(list(settings(load(each))))
        assert found(load(each))["placement", "password"].value == "***"


def test_options_without_effect_are_marked(load, tmp_path):
    options = found(load("[compute]\ncpu_dedicated_sett = 1\n[nothing]\na = b\n"))
    for place in (("compute", "cpu_dedicated_sett"), ("nothing", "a")):
        assert options[place].origin == f"{tmp_path}/0.conf, without effect"


def test_changed_options_are_named_with_both_values(load):
    before = option_values(load("[policy]\nname = none\n[watermark:a]\nmetric = cpu_usage\nevict = 9%\n"))
    after = option_values(
        load("[policy]\nname = follow\n[watermark:a]\nmetric = cpu_usage\nfor_samples = 3\n")
    )
    assert list(changed_values(before, after)) == [
        "[policy] name = follow (was none)",
        "[watermark:a] evict removed",
        "[watermark:a] for_samples = 3 (new)",
    ]
    assert list(changed_values(after, after)) == []


@pytest.mark.parametrize(
    "written", ["[placement]\npassword = {}\n", "[placement]\npasscode = {}\n", "[DEFAULT]\nmy_key = {}\n"]
)
def test_a_changed_secret_is_named_without_its_values(load, written):
    before, after = (option_values(load(written.format(value))) for value in ("one", "three"))
    (told,) = changed_values(before, after)
    assert told.endswith(" changed")
    assert not {"one", "three"} & {one.shown for one in (*before.values(), *after.values())}
    assert list(changed_values(before, before)) == []


def test_a_long_value_is_cut(load):
    before, after = (
        option_values(load(text)) for text in ("", "[placement]\nregion_name = " + "x" * 500 + "\n")
    )
    (told,) = changed_values(before, after)
    assert len(told) < 200


def test_values_are_unknown_if_a_file_changes_after_it_was_read(load, tmp_path):
    loaded = load("[policy]\nname = none\n")
    (tmp_path / "0.conf").write_text("no ini file\n")
    assert option_values(loaded) is None
    (tmp_path / "0.conf").unlink()
    assert option_values(loaded) is None


def test_only_some_of_many_changed_options_are_named():
    value = OptionValue("1", 1)
    after = {("qos_class:LS", f"option{number}"): value for number in range(MAX_CHANGES + 7)}
    found = list(changed_values({}, after))
    assert (len(found), found[-1]) == (MAX_CHANGES + 1, "7 more options")
