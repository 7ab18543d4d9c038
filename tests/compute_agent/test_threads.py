"""Tests of the agent's threads: tasks run while there is work, signals end pauses, and helpers return
results.
"""

import sys
import threading

import pytest

from compute_agent.threads import ONCE, PeriodicTask, ThreadSpec, WakeSignal, run_aside

LONG = 20.0
ROLE = ThreadSpec("work", 0.001, "works", "none", "nothing")


class Work:
    """The work of a loop, in rounds, until the test ends the loop."""

    def __init__(self, needed=True):
        self.needed, self.begun = needed, 0
        self.failures, self.error = [], None
        self.done, self.rested = threading.Semaphore(0), threading.Semaphore(0)
        self.kept = 0
        self.pause, self.signal = 0.001, WakeSignal()
        self.thread = PeriodicTask(
            ROLE,
            lambda: self.round(),
            lambda took: self.pause,
            self.failures.append,
            is_needed=lambda: self.needed,
            begin=self.begin,
            rest=lambda: self.rest(),
            keep=lambda: self.keep(),
            signal=self.signal,
        )

    def begin(self):
        self.begun += 1

    def keep(self):
        self.kept += 1

    def rest(self):
        self.rested.release()

    def round(self):
        self.done.release()
        if self.error is not None:
            raise self.error


@pytest.fixture
def work():
    work = Work()
    yield work
    work.thread.stop(LONG)


def test_rounds_run_while_there_is_work_and_rest_otherwise(work):
    work.needed = False
    work.thread.start()
    assert not work.thread.is_running
    for count in (1, 2):
        work.needed = True
        work.thread.start()
        work.thread.start()
        assert work.done.acquire(timeout=LONG)
        assert (work.thread.is_running, work.begun) == (True, count)
        work.needed = False
        assert work.rested.acquire(timeout=LONG)


def test_an_exception_is_new_once_until_there_is_another(work):
    work.error = ValueError("a")
    work.thread.start()
    for _ in range(3):
        assert work.done.acquire(timeout=LONG)
    work.thread.stop(LONG)
    assert work.failures[0]
    assert not any(work.failures[1:])


def test_a_task_begins_again_after_an_error_during_its_rest(work):
    went_wrong = threading.Event()

    def rest():
        work.rest = lambda: None
        went_wrong.set()
        sys.exit("nobody expects this")

    work.rest = rest
    work.thread.start()
    assert work.done.acquire(timeout=LONG)
    work.needed = False
    assert went_wrong.wait(LONG)
    work.needed = True
    work.thread.start()
    assert work.thread.is_running
    assert work.begun == 2


def test_a_stopped_task_does_not_begin_again(work):
    work.thread.start()
    work.thread.stop(LONG)
    work.thread.start()
    assert not work.thread.is_running
    work.thread.stop(LONG)
    assert work.kept == 1


@pytest.mark.parametrize("hanging", ["round", "rest", "keep"])
def test_stopping_does_not_wait_long_for_work_that_hangs(work, hanging):
    reached, over = threading.Event(), threading.Event()

    def hang():
        reached.set()
        over.wait(LONG)

    setattr(work, hanging, hang)
    work.thread.start()
    assert work.done.acquire(timeout=LONG) if hanging != "round" else reached.wait(LONG)
    if hanging == "rest":
        work.needed = False
        assert reached.wait(LONG)
    stopping = threading.Thread(target=work.thread.stop, args=(0.01,))
    stopping.start()
    stopping.join(LONG / 2)
    is_waited_for = stopping.is_alive()
    over.set()
    stopping.join()
    assert not is_waited_for
    assert reached.wait(LONG)


@pytest.mark.parametrize("wake", [lambda work: work.thread.wake(), lambda work: work.signal.wake()])
def test_a_signal_ends_a_pause(work, wake):
    work.pause = None
    work.thread.start()
    for _ in range(3):
        assert work.done.acquire(timeout=LONG)
        wake(work)
    assert work.done.acquire(timeout=LONG)


def test_a_signal_during_a_round_is_for_the_next_one(work):
    work.pause = None
    work.signal.wake()
    reached, over = threading.Event(), threading.Event()

    usual = work.round

    def hang():
        work.round = usual
        reached.set()
        over.wait(LONG)

    work.round = hang
    work.thread.start()
    assert reached.wait(LONG)
    work.signal.wake()
    over.set()
    assert work.done.acquire(timeout=LONG)


def test_stopping_ends_an_endless_pause_and_nothing_else_is_done(work):
    work.pause = None
    work.thread.start()
    assert work.done.acquire(timeout=LONG)
    work.thread.stop(LONG)
    assert not work.thread.is_alive()
    assert work.kept == 1


def test_a_task_that_never_started_can_be_stopped(work):
    work.thread.stop(LONG)
    assert not work.thread.is_alive()
    assert work.kept == 0


@pytest.mark.parametrize("error", [ValueError("a"), SystemExit(3)])
def test_a_helper_hands_over_what_its_work_raises(error):
    def fail():
        raise error

    assert run_aside(ThreadSpec("help", ONCE, "fails", "none", "nothing"), fail).exception(LONG) is error
