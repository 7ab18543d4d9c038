"""Messages of the programs of `benchmarks` before they measure anything."""

import benchmarks


def test_a_missing_package_is_reported_in_one_line_with_the_command_that_installs_it(capsys):
    error = ModuleNotFoundError("No module named 'pymysql'", name="pymysql")
    benchmarks.report_error(type(error), error, None)
    told = capsys.readouterr().err
    assert told.startswith("No module named 'pymysql'. This needs what tests need: `make .venv/.installed` ")
    assert told.count("\n") == 1


def test_other_errors_are_raised_unchanged(capsys):
    benchmarks.report_error(ValueError, ValueError("seven"), None)
    assert "ValueError: seven" in capsys.readouterr().err
