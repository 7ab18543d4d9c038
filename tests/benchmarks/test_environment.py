"""What the programs of `benchmarks` say before they measure anything."""

import benchmarks


def test_what_is_not_installed_is_told_in_one_line_with_what_installs_it(capsys):
    error = ModuleNotFoundError("No module named 'pymysql'", name="pymysql")
    benchmarks.tell(type(error), error, None)
    told = capsys.readouterr().err
    assert told.startswith("No module named 'pymysql'. This needs what tests need: `make .venv/.installed` ")
    assert told.count("\n") == 1


def test_other_errors_are_told_as_always(capsys):
    benchmarks.tell(ValueError, ValueError("seven"), None)
    assert "ValueError: seven" in capsys.readouterr().err
