"""Tests of threads that run no guest CPU, and of the CPUs on which they belong."""

from hypothesis import given
from hypothesis import strategies as st

from compute_agent.controllers.emulator import EmulatorSettings, find_misplaced, tell_misplaced
from compute_agent.model.guest import CpuAssignment
from tests.compute_agent.builders import cpu_set

ONLINE = frozenset(range(8))
HOST = EmulatorSettings(True, cpu_set(0, 4), {0: cpu_set(0, 1, 2, 3), 1: cpu_set(4, 5, 6, 7)})
PINNED = CpuAssignment((cpu_set(5), cpu_set(6)), cpu_set(5, 6), (5, 6), given=True)
CPU_SETS = st.frozensets(st.integers(0, 7))


def test_threads_go_to_shared_cpus_of_the_nodes_of_their_guest():
    assert HOST.choose_cpus(PINNED, cpu_set(5, 6), ONLINE) == cpu_set(4)
    both = CpuAssignment((cpu_set(1), cpu_set(6)), cpu_set(1), (1, 6))
    assert HOST.choose_cpus(both, cpu_set(1, 6), ONLINE) == cpu_set(0, 4)
    assert HOST.choose_cpus(PINNED, cpu_set(5, 6), ONLINE - {4}) == cpu_set(0)
    assert HOST.choose_cpus(PINNED, cpu_set(0, 4), ONLINE) == frozenset()


def test_threads_on_dedicated_cpus_are_misplaced():
    threads = {1: cpu_set(5, 6), 2: cpu_set(4), 3: ONLINE, 4: cpu_set(2)}
    held = cpu_set(2, 5, 6)
    assert find_misplaced(threads, PINNED, held) == {1: cpu_set(5, 6), 3: held, 4: cpu_set(2)}


def test_a_cpu_of_their_own_is_none_of_the_reserved_ones():
    alone = CpuAssignment((cpu_set(5),), cpu_set(6), (5, 6), given=True)
    assert find_misplaced({1: cpu_set(6), 2: cpu_set(5, 6)}, alone, cpu_set(5, 6)) == {2: cpu_set(5)}


@given(threads=st.dictionaries(st.integers(1, 9), CPU_SETS, max_size=4), held=CPU_SETS, online=CPU_SETS)
def test_moved_threads_are_not_misplaced_again(threads, held, online):
    cpus = HOST.choose_cpus(PINNED, held, online)
    assert cpus <= online
    moved = threads | dict.fromkeys(find_misplaced(threads, PINNED, held), cpus)
    assert find_misplaced(moved, PINNED, held) == {}


def test_a_sentence_names_few_threads():
    found = {tid: cpu_set(5) for tid in range(1, 7)}
    assert tell_misplaced({}) == ""
    text = "threads that run no guest CPU may use dedicated CPUs 5: 1, 2, 3, 4 and 2 more"
    assert tell_misplaced(found) == text
