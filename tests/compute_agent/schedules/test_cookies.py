"""Tests of core scheduling cookies: classes, cookies of other programs, refusals of the kernel, notes, and
removal.
"""

import contextlib
import errno
import os
from concurrent.futures import Future

import pytest

from compute_agent.controllers.core_cookies import FOREIGN, CoreCookieController
from compute_agent.drivers import procfs
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.files import UnsafeFileError
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CoreScope
from compute_agent.schedules import cookies as core_cookies
from compute_agent.schedules import run_notes
from compute_agent.schedules.cookies import (
    CookieError,
    CookieGuest,
    KernelCookies,
    NoSiblingsError,
    OwnCookieError,
    RunNote,
    decide_cookies,
)
from compute_agent.schedules.run_notes import COOKIES_FILE, CookieLender, RunNotesFile
from tests.compute_agent.schedules.cookie_host import CookieHost

SCOPES = {"G": CoreScope.GUEST, "C": CoreScope.CLASS}


@pytest.fixture
def host(monkeypatch):
    host = CookieHost()
    monkeypatch.setattr(procfs, "identify_process", host.identify_process)
    monkeypatch.setattr(procfs, "is_alive", host.is_alive)
    return host


@pytest.fixture
def store(tmp_path):
    return RunNotesFile(tmp_path / COOKIES_FILE)


@pytest.fixture
def lost():
    return []


@pytest.fixture
def controller(host, store, lost):
    return CoreCookieController(host, SCOPES, store, host, lambda: lost.append(1))


def sync(controller, host):
    controller.sync(host.targets(), ())


def test_guests_of_a_class_share_a_cookie_and_others_have_their_own(controller, host):
    for name, qos_class in (("a", "C"), ("b", "C"), ("c", "G"), ("d", "G"), ("e", "LS")):
        host.start(name, qos_class)
    rows = {row.subject: row.change for row in controller.plan_changes(host.targets(), ())}
    assert rows == {
        "a": "a cookie for class C",
        "c": "a cookie for it alone",
        "d": "a cookie for it alone",
    }
    sync(controller, host)
    assert host.cookies_of("a") == host.cookies_of("b") != {0}
    assert len(host.cookies_of("a") | host.cookies_of("c") | host.cookies_of("d")) == 3
    assert host.cookies_of("e") == {0}
    assert not list(controller.plan_changes(host.targets(), ()))


def test_cookies_of_another_program_stay(controller, host, store):
    host.start("a", "G")
    host.make_own("a")
    before = host.cookies_of("a")
    sync(controller, host)
    assert (host.cookies_of("a"), store.kept_notes) == (before, {})
    assert controller.refused == {"a": (f"core_scheduling: {FOREIGN}",)}


@pytest.mark.parametrize("with_thread", [True, False])
def test_a_cookie_of_another_program_counts_only_if_it_separates(controller, host, with_thread):
    host.start("a", "G")
    host.start("b", "LS")
    host.make_own("a")
    threads = host.guests["a"].cookies
    if with_thread:
        threads[max(threads)] = 0
    else:
        host.guests["b"].cookies = dict.fromkeys(host.guests["b"].cookies, min(host.cookies_of("a")))
    sync(controller, host)
    assert (len(host.cookies_of("a")), controller.refused) == (1, {})
    assert not host.cookies_of("a") & (host.cookies_of("b") | {0})


def test_a_refusal_of_one_guest_costs_no_other_its_cookie(controller, host, store):
    for name, qos_class in (("a", "G"), ("b", "C"), ("c", "C"), ("d", "C")):
        host.start(name, qos_class)
    host.refusing = dict.fromkeys("ab", CookieError("no"))
    sync(controller, host)
    assert controller.refused == dict.fromkeys("ab", ("core_scheduling: no",))
    assert host.cookies_of("a") == host.cookies_of("b") == {0}
    assert host.cookies_of("c") == host.cookies_of("d") != {0}
    assert store.kept_notes.keys() == set("abcd")
    host.refusing = {}
    sync(controller, host)
    assert (host.cookies_of("b"), controller.refused) == (host.cookies_of("c"), {})


def test_a_guest_of_another_group_brings_no_cookie_along(controller, host, lost):
    for name, qos_class in (("a", "C"), ("b", "C"), ("c", "G")):
        host.start(name, qos_class)
    sync(controller, host)
    [former] = host.cookies_of("a")
    host.guests["a"].qos_class, host.guests["c"].qos_class = "G", "C"
    sync(controller, host)
    assert host.cookies_of("b") == host.cookies_of("c") == {former}
    assert not host.cookies_of("a") & {0, former}
    assert lost == []


def test_a_guest_that_leaves_its_group_does_not_keep_its_cookie(controller, host):
    host.start("a", "C")
    host.start("b", "C")
    sync(controller, host)
    [former] = host.cookies_of("a")
    # The other guest keeps its cookie, and no decision concerns it.
    host.guests["a"].qos_class, host.guests["b"].preserve = "G", True
    sync(controller, host)
    assert host.cookies_of("b") == {former}
    assert not host.cookies_of("a") & {0, former}


def test_ids_of_an_ended_guest_get_no_cookie(controller, host, monkeypatch):
    host.start("a", "G")
    monkeypatch.setattr(procfs, "is_alive", lambda identity: False)
    sync(controller, host)
    assert host.cookies_of("a") == {0}


def test_a_guest_that_makes_threads_faster_is_told_so(controller, host, store):
    host.start("a", "G")
    sync(controller, host)
    threads = host.guests["a"].cookies
    threads[max(threads)], host.busy["a"] = 0, 100
    sync(controller, host)
    assert controller.refused == {"a": ("core_scheduling: 1 threads lack it",)}
    host.guests["a"].qos_class = "LS"
    sync(controller, host)
    assert "threads keep a cookie" in controller.refused["a"][0]
    host.guests["a"].qos_class = "G"
    releasing = CoreCookieController(host, {}, store, host)
    guests = [target.guest for target in host.targets()]
    [item] = releasing.release(guests, frozenset())
    with pytest.raises(DriverError, match="some of its threads keep a cookie"):
        item.give_back()
    assert store.kept_notes.keys() == {"a"}
    host.busy["a"] = 2
    item.give_back()
    assert (host.cookies_of("a"), store.kept_notes) == ({0}, {})


def test_a_refusal_while_a_cookie_is_taken_is_said(controller, host, store):
    host.start("a", "G")
    sync(controller, host)
    host.guests["a"].qos_class, host.refusing = "LS", {"a": CookieError("no")}
    sync(controller, host)
    assert controller.refused == {"a": ("core_scheduling: no",)}
    [item] = controller.release([target.guest for target in host.targets()], frozenset())
    with pytest.raises(DriverError, match="no"):
        item.give_back()
    assert store.kept_notes.keys() == {"a"}


def test_a_thread_that_lost_its_cookie_is_drift_and_gets_it_again(controller, host, lost):
    host.start("a", "G")
    sync(controller, host)
    [cookie] = host.cookies_of("a")
    guest = host.guests["a"]
    guest.cookies[max(guest.cookies)] = 0
    assert lost == []
    sync(controller, host)
    assert (host.cookies_of("a"), lost) == ({cookie}, [1])


def test_a_preserved_guest_keeps_its_cookie_and_its_note(controller, host, store):
    host.start("a", "G")
    host.start("b", "G")
    sync(controller, host)
    before = host.cookies_of("a")
    host.guests["a"].preserve = True
    host.guests["a"].qos_class = "LS"
    sync(controller, host)
    assert host.cookies_of("a") == before
    host.guests["a"].preserve = False
    sync(controller, host)
    assert host.cookies_of("a") == {0}
    sync(controller, host)
    assert store.kept_notes.keys() == {"b"}


def test_release_gives_all_cookies_back(controller, host, store):
    host.start("a", "C")
    host.start("b", "C")
    sync(controller, host)
    releasing = CoreCookieController(host, {}, store, host)
    guests = [target.guest for target in host.targets()]
    items = list(releasing.release(guests, frozenset()))
    assert [(item.kind, item.name, item.detail) for item in items] == [
        ("core_scheduling", name, "a core cookie of 2 threads") for name in "ab"
    ]
    for item in items:
        item.give_back()
    assert host.cookies_of("a") | host.cookies_of("b") == {0}
    assert store.kept_notes == {}


@pytest.mark.parametrize("by_release", [False, True])
@pytest.mark.parametrize("remains", [True, False])
def test_a_cookie_from_before_comes_from_a_guest_that_still_has_it(
    controller, host, store, lost, by_release, remains
):
    launcher = 3
    for name, qos_class in (("a", "G"), ("b", "C"), ("c", "LS")):
        host.start(name, qos_class, launcher)
    sync(controller, host)
    host.guests["b"].qos_class = "G"  # another group on the way
    sync(controller, host)
    assert not (host.cookies_of("a") | host.cookies_of("b")) & {0, launcher}
    if not remains:
        del host.guests["c"]
        host.start("c", "LS", launcher)  # the kernel may use the number of a cookie again
    if by_release:
        items = CoreCookieController(host, {}, store, host).release(
            [target.guest for target in host.targets()], frozenset()
        )
        for item in items:
            item.give_back()
    else:
        host.guests["a"].qos_class = host.guests["b"].qos_class = "LS"
        rows = [row.change for row in controller.plan_changes(host.targets(), ())]
        assert rows == ["2 threads -> its former cookie" if remains else "2 threads -> no cookie"] * 2
        sync(controller, host)
    expected = {launcher} if remains else {0}
    assert host.cookies_of("a") == host.cookies_of("b") == expected
    assert (host.cookies_of("c"), store.kept_notes, lost) == ({launcher}, {}, [])


def test_an_agent_that_keeps_its_own_cookie_says_so(controller, host, caplog):
    host.start("a", "G")
    host.own_problem = OwnCookieError("it stays")
    sync(controller, host)
    sync(controller, host)
    assert caplog.text.count("share until they get a cookie: it stays") == 1
    assert 0 not in host.cookies_of("a")


class FakeKernel:
    """Cookies by thread, with the answers of prctl(2) and the numbers of linux/prctl.h.

    The calling thread has the id 0, and this process has the threads 70 and 71.
    """

    def __init__(self, monkeypatch, **cookies):
        self.cookies = {0: 0, 1: 0, 2: 0} | {int(name[1:]): cookie for name, cookie in cookies.items()}
        monkeypatch.setattr(core_cookies, "_LIBC", self)
        monkeypatch.setattr(core_cookies.ctypes, "get_errno", lambda: errno.ESRCH)

    def prctl(self, *arguments):
        command, tid, scope = (number.value for number in arguments[1:4])
        assert arguments[0] == 62
        is_process = (tid, scope) == (os.getpid(), 1)
        if tid not in self.cookies and not is_process:
            return -1
        match command:
            case 0:
                arguments[4]._obj.value = self.cookies[tid]
            case 1:
                self.cookies |= dict.fromkeys((70, 71) if is_process else (tid,), 5)
            case 2:
                self.cookies |= dict.fromkeys((70, 71) if is_process else (tid,), self.cookies[0])
            case 3:
                self.cookies[0] = self.cookies[tid]
        return 0


def test_cookies_are_read_created_and_passed_on_by_the_numbers_of_the_kernel(monkeypatch):
    kernel, cookies = FakeKernel(monkeypatch, t70=0, t71=0, t80=4, t90=0), KernelCookies()
    assert [cookies.read_cookie(tid) for tid in (80, 90, 91)] == [4, 0, None]
    cookies.create_cookie(os.getpid())
    assert (kernel.cookies[70], kernel.cookies[71]) == (5, 5)
    cookies.grant_cookie(80, [90, 91])
    assert kernel.cookies[90] == 4


def test_the_agents_own_cookie_is_cleared_and_given_to_no_guest(monkeypatch):
    kernel = FakeKernel(monkeypatch, t0=9, t1=9, t70=9, t71=9, t80=4)
    KernelCookies().grant_cookie(0, [80, 81])
    assert kernel.cookies[80] == 0
    kernel.cookies[0] = 9
    KernelCookies().clear_own_cookie()
    assert (kernel.cookies[70], kernel.cookies[71]) == (0, 0)
    kernel.cookies |= {0: 9, 2: 9, 80: 4}
    with pytest.raises(OwnCookieError):
        KernelCookies().grant_cookie(0, [80])
    with pytest.raises(OwnCookieError):
        KernelCookies().clear_own_cookie()
    assert kernel.cookies[80] == 4


def test_a_kernel_without_core_scheduling_is_a_refusal_of_each_guest(controller, host):
    host.start("a", "G")
    host.start("b", "LS")
    host.refusal = CookieError(core_cookies.NOT_KNOWN)
    sync(controller, host)
    assert controller.refused == {
        "a": ("core_scheduling: the kernel has no core scheduling (CONFIG_SCHED_CORE, Linux 5.14)",)
    }
    assert not list(controller.plan_changes(host.targets(), ()))


def test_without_siblings_nothing_is_missing(controller, host, caplog):
    host.start("a", "G")
    host.refusal = NoSiblingsError()
    with caplog.at_level("INFO"):
        sync(controller, host)
        sync(controller, host)
    assert controller.refused == {}
    assert caplog.text.count("No core has two online threads") == 1
    host.refusal = None
    sync(controller, host)
    assert 0 not in host.cookies_of("a")


def test_without_a_note_on_disk_no_cookie_is_given(controller, host, monkeypatch):
    host.start("a", "G")
    full = OSError(errno.ENOSPC, "no space")

    def fail(path, content):
        raise full

    monkeypatch.setattr(run_notes, "write_durably", fail)
    with pytest.raises(OSError, match="no space"):
        sync(controller, host)
    assert host.cookies_of("a") == {0}


MAIN = ProcessIdentity(7, (1 << 63) + 1, "boot")
NOTE = RunNote(MAIN, (1 << 64) - 1, lender=CookieLender(MAIN, 3))


def test_notes_survive_a_restart(tmp_path):
    RunNotesFile(tmp_path / "n").keep_notes({"a": NOTE})
    assert RunNotesFile(tmp_path / "n").kept_notes == {"a": NOTE}


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1, "sha256": "", "data": {}}', '{"version": 2}'])
def test_a_damaged_file_is_put_aside(tmp_path, content, caplog):
    path = tmp_path / "n"
    path.write_text(content)
    path.chmod(0o600)
    store = RunNotesFile(path)
    assert store.kept_notes == {}
    assert "guests keep the settings that the file recorded" in caplog.text
    store.keep_notes({"a": NOTE})
    assert RunNotesFile(path).kept_notes == {"a": NOTE}


def test_a_file_of_another_user_is_refused(tmp_path):
    (tmp_path / "m").write_text("{}")
    (tmp_path / "n").symlink_to(tmp_path / "m")
    with pytest.raises(UnsafeFileError):
        RunNotesFile(tmp_path / "n").keep_notes({})


def test_a_later_run_of_a_guest_gets_a_cookie_of_its_own():
    note = {"a": RunNote(ProcessIdentity(7, 1, "boot"))}
    again = CookieGuest("a", ProcessIdentity(7, 2, "boot"), "guest a", {7: 0})
    plan = decide_cookies([again], note)
    assert plan.created == (again,)
    assert plan.notes == {"a": RunNote(again.main, group="guest a")}


def test_the_kernels_answers_have_a_remedy(monkeypatch):
    """The kernel of this machine may have core scheduling or not. Each of its answers is a cookie or a known
    error.
    """
    with contextlib.suppress(NoSiblingsError, CookieError):
        assert KernelCookies().read_cookie(1 << 22) is None
    for number, error in (
        (errno.EPERM, "CAP_SYS_PTRACE"),
        (errno.EINVAL, "CONFIG_SCHED_CORE"),
        (errno.ENOMEM, "Cannot allocate"),
    ):
        monkeypatch.setattr(core_cookies.ctypes, "get_errno", lambda number=number: number)
        monkeypatch.setattr(core_cookies, "_LIBC", Refusing())
        with pytest.raises(CookieError, match=error):
            KernelCookies().grant_cookie(1, [2])
    monkeypatch.setattr(core_cookies.ctypes, "get_errno", lambda: errno.ESRCH)
    KernelCookies().grant_cookie(1, [2])
    KernelCookies().create_cookie(1)
    assert KernelCookies().read_cookie(1) is None
    monkeypatch.setattr(core_cookies.ctypes, "get_errno", lambda: errno.ENODEV)
    with pytest.raises(NoSiblingsError):
        KernelCookies().create_cookie(1)


def test_a_kernel_that_hangs_is_a_reason(monkeypatch):
    monkeypatch.setattr(core_cookies, "_GRANT_SECONDS", 0.01)
    monkeypatch.setattr(core_cookies, "run_aside", lambda role, work: Future())
    with pytest.raises(CookieError, match=r"the kernel gave no answer within 0\.01 s"):
        KernelCookies().grant_cookie(1, [2])


class Refusing:
    def prctl(self, *arguments):
        return -1
