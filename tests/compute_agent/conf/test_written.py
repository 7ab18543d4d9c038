"""Tests of warnings about lines of ini files that have no effect, or another effect than it seems."""

import pytest
from oslo_config import cfg

from compute_agent import conf
from compute_agent.conf.written import NO_COMMENTS


@pytest.fixture
def load(tmp_path):
    """A function that loads a configuration from the texts of its files."""

    def load(*texts):
        paths = []
        for number, text in enumerate(texts):
            paths.append(tmp_path / f"{number}.ini")
            paths[-1].write_text(text)
        return conf.load([], [str(path) for path in paths])

    return load


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[compute]\ncpu_dedicate_set = 0", "did you mean cpu_dedicated_set?"),
        ("[compute]\ncpu-dedicated-set = 0", "did you mean cpu_dedicated_set?"),
        ("[compute]\nCPU_DEDICATED_SET = 0", "did you mean cpu_dedicated_set?"),
        ("[DEFAULT]\ncpu_dedicated_set = 0", "it is one of [compute]"),
        ("[DEFAULT]\nreconcile_intervall = 3", "did you mean reconcile_interval in [guests]?"),
        ("[DEFAULT]\ntransport_url = rabbit://", "so it has no effect"),
        ("[placement]\nauth_type = password\nuser_nam = x", "did you mean user_name?"),
        ("[placement]\nauth_type = http_basic\nauth_url = x\nendpont = y", "did you mean endpoint?"),
    ],
)
def test_an_option_that_does_not_exist_is_told_with_what_may_have_been_meant(load, text, told):
    section, option = text.splitlines()[0], text.splitlines()[-1].partition(" ")[0]
    (stray,) = conf.find_unknown_options(load(text))
    assert stray.startswith(f"{section} {option}: there is no such option")
    assert stray.endswith(told)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("guest", "did you mean [guests]?"),
        ("default", "did you mean [DEFAULT]?"),
        ("libvrt", "did you mean [libvirt]?"),
        ("keystone_authtoken", "so it has no effect"),
    ],
)
def test_a_section_that_does_not_exist_is_told_once(load, section, told):
    (stray,) = conf.find_unknown_options(load(f"[{section}]\na = 1\nb = 2\n"))
    assert stray.startswith(f"[{section}]: there is no such section")
    assert stray.endswith(told)


@pytest.mark.parametrize(
    "text",
    [
        "[DEFAULT]\ndebug = true\nlog_file = /x\nlogfile = /x\ndefault_log_levels = a=INFO\n",
        "[placement]\nauth_type = password\nauth_url = x\nusername = x\npassword = y\nregion_name = z\n",
        "[placement]\nauth_type = none\nendpoint = http://x\n",
        "[placement]\nauth_type = v3applicationcredential\napplication_credential_id = x\n",
        "[placement]\nauth_section = keystone\n[keystone]\nwhatever = x\n",
        "[Compute]\ncpu_dedicated_set = 0\n",  # oslo.config takes this for [compute]
        "[watermark:a]\nmetric = cpu_usage\nevict = 90%\n[qos_class:A]\nrank = 3\n[qos]\ninterval = 2\n",
        "[daemon]\nsocket = /run/a#b.sock\n",
    ],
)
def test_known_options_are_not_reported(load, text):
    assert conf.find_unknown_options(load(text)) == []


def test_options_of_a_plugin_that_does_not_exist_are_not_judged(load):
    assert conf.find_unknown_options(load("[placement]\nauth_type = passwort\nwhatever = x\n")) == []


def test_every_file_counts(load):
    first, second = "[compute]\nfirst = 1\n", "[compute]\nsecond = 2\n[compute2]\na = 1\n"
    assert [stray.partition(": ")[0] for stray in conf.find_unknown_options(load(first, second))] == [
        "[compute] first",
        "[compute] second",
        "[compute2]",
    ]


@pytest.mark.parametrize("mark", ["# hosts 2 to 5", "; ditto", "#"])
def test_a_comment_behind_a_value_is_told_without_the_value(load, mark):
    loaded = load(f"[placement]\nauth_type = password\npassword = secret\t{mark}\n")
    (stray,) = conf.find_unknown_options(loaded)
    assert stray == f"[placement] password: {NO_COMMENTS}"


@pytest.mark.parametrize(
    ("section", "line", "reason"),
    [
        ("compute", "provider_tree = flat   # comment", "found 'flat   # comment'"),
        ("compute", "update_resources_interval = 60 ; seconds", "'60 ; seconds'"),
        ("DEFAULT", "debug = true # for now", "true # for now"),
        ("qos", "interval = 2 # s", "'2 # s'"),
        ("watermark:x", "mode = act # now", "found 'act # now'"),
        ("placement", "timeout = 10 # s", "'10 # s'"),
    ],
)
def test_a_value_that_is_refused_for_its_comment_is_told_with_section_option_and_remedy(
    load, section, line, reason
):
    with pytest.raises(cfg.ConfigFileValueError) as caught:
        load(f"[{section}]\n{line}\n")
    text = str(caught.value)
    assert text.startswith(f"[{section}] {line.partition(' ')[0]}: ")
    assert reason in text
    assert text.endswith(NO_COMMENTS)


@pytest.mark.parametrize(
    ("section", "line"),
    [("compute", "provider_tree = ring"), ("DEFAULT", "use_json = maybe"), ("daemon", "http_port = 99999")],
)
def test_a_value_that_is_refused_is_told_with_section_option_and_file(load, tmp_path, section, line):
    with pytest.raises(cfg.ConfigFileValueError) as caught:
        load(f"[{section}]\n{line}\n")
    assert str(caught.value).startswith(f"[{section}] {line.partition(' ')[0]}: ")
    assert (f" (in {tmp_path}/0.ini)" in str(caught.value)) == (section != "DEFAULT")
    assert NO_COMMENTS not in str(caught.value)
    assert "LocationInfo" not in str(caught.value)
