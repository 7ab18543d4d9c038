"""The table of allocations and their enforcement agrees with the code: each row of the table has its code."""

import dataclasses
import re
from pathlib import Path

from compute_agent.controllers import blockio, cpu, cpu_class, emulator, isolation, memory, resctrl
from compute_agent.drivers.foreign.kernel_values import FILES, IDLE_FILE
from compute_agent.drivers.systemd.unit_state import UNIT_DEFAULTS
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.resource import RESOURCE_CLASSES

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "doc/host/enforcement.md"
CONTROLLERS = {
    cpu.CpusetController.name,
    cpu.CpuController.name,
    memory.MemoryController.name,
    memory.MemoryLimitController.name,
    blockio.BlockIoController.name,
    cpu_class.CpuClassController.name,
    emulator.EmulatorController.name,
    isolation.IsolationController.name,
    resctrl.ResctrlController.name,
}


def rows():
    """The cells of each row of the table."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_resource_and_setting_of_a_guest_has_a_row():
    known = {one.name for one in RESOURCE_CLASSES} | {one.name for one in dataclasses.fields(GuestSettings)}
    assert {row[0].strip("`") for row in rows()} == known
    assert len(rows()) == len(known)


def test_controllers_and_tests_in_the_table_exist():
    for held, enforced, _services, _containers, _on, tests, repaired in rows():
        for name in re.findall(r"controllers? `(\w+)`", enforced):
            assert name in CONTROLLERS, held
        named = re.findall(r"`([^`]+)`", tests)
        assert named or not repaired, held
        for path in named:
            assert (CHECKOUT / path).is_file(), path


def named_words(column):
    """The words in backticks of a column, apart from controllers and assignments."""
    words = {word for row in rows() for word in re.findall(r"`([^`]+)`", row[column])}
    return {word for word in words if "=" not in word} - CONTROLLERS


def test_services_and_containers_have_the_values_of_the_code():
    assert named_words(2) - {IDLE_FILE} == UNIT_DEFAULTS.keys()
    assert named_words(3) == {*FILES.values(), IDLE_FILE}
    # Each of these values is set, repaired and given back by these tests, by the first one for each driver.
    for row in rows():
        if "`" in row[2].replace("`cpu_class`", ""):
            for path in (
                "tests/compute_agent/drivers/foreign/test_enforced_values.py",
                "tests/vm/inside_units.py",
                "tests/compute_agent/drivers/containers/test_driver.py",
            ):
                assert path in row[5], row[0]


def test_cells_that_hold_as_for_all_guests_have_a_test_with_guests_of_other_programs():
    cited = {
        row[0].strip("`") for row in rows() if "tests/compute_agent/agent/test_enforced_kinds.py" in row[5]
    }
    same = {row[0].strip("`") for row in rows() if "as for all guests" in row[2]}
    assert same == {row[0].strip("`") for row in rows() if "as for all guests" in row[3]}
    # These two settings are inputs of pure decisions, which have no kind of guest.
    assert same - cited == {"priority", "spread"}


def test_the_page_of_the_pipeline_names_every_controller():
    page = (CHECKOUT / "doc/concepts/pipeline.md").read_text()
    step = page.partition("3. **Mark**")[2].partition("4. **")[0].partition(":\n   a host")[0]
    assert set(re.findall(r"`(\w+)`", step)) == CONTROLLERS


def test_every_controller_enforces_something():
    told = " ".join(row[1] for row in rows())
    assert {name for name in CONTROLLERS if f"`{name}`" in told} == CONTROLLERS
