"""Tests that irqbalance avoids quiet CPUs when the agent asks it through its socket, and later gets its
former bans back.
"""

import os

import pytest

from compute_agent.isolation import irqbalance
from compute_agent.isolation.decision import HeldCpus, IsolationDemand
from compute_agent.isolation.irqbalance import (
    NO_ANSWER,
    NOT_ROOTS,
    REFUSED,
    UNREADABLE,
    BalancerGoneError,
    BalancerSockets,
    KeptBan,
    SeenBan,
    decide_bans,
)
from compute_agent.isolation.originals import OriginalMasks, dump_originals, parse_originals
from tests.compute_agent.isolation.fake_irqbalance import FakeBalancer
from tests.compute_agent.isolation.fake_kernel import IsolationHost, Killed

DEDICATED = frozenset(range(2, 8))
NOTHING = IsolationDemand((), DEDICATED)
KEY = "irqbalance77.sock@1"


def demand(*cpus):
    return IsolationDemand((HeldCpus("a", frozenset(cpus), True),), DEDICATED)


class CountedSockets(BalancerSockets):
    """Sockets of irqbalance. A write of a ban counts as a write of the fake kernel, at which a test can kill
    the agent.
    """

    def __init__(self, kernel, clock):
        super().__init__(kernel.root, clock)
        self.kernel = kernel

    def write_ban(self, key, cpus):
        self.kernel.note_write(key, str(cpus))
        super().write_ban(key, cpus)


class BalancedHost(IsolationHost):
    """A host with irqbalance, and with a clock that does not advance."""

    def __init__(self, folder, **options):
        self.now = 100.0
        self.balancers = []
        super().__init__(folder)
        self.run(**options)

    def start(self):
        if hasattr(self, "now"):
            self.kernel.balancers = CountedSockets(self.kernel, lambda: self.now)
        super().start()

    def run(self, **options):
        self.balancer = FakeBalancer(self.kernel.root, **options)
        self.balancers.append(self.balancer)
        return self.balancer

    def restart(self, **options):
        self.balancer.end()
        self.run(**options)

    def scan(self):
        self.now += 12
        self.balancer.scan()


@pytest.fixture
def make_host(tmp_path_factory, monkeypatch):
    # The time limit is long, so that irqbalance on a slow machine does not count as hanging.
    monkeypatch.setattr(irqbalance, "_ANSWER_SECONDS", 60.0)
    made = []

    def make(**options):
        made.append(BalancedHost(tmp_path_factory.mktemp("host"), **options))
        made[-1].start()
        return made[-1]

    yield make
    for host in made:
        for balancer in host.balancers:
            if not balancer.has_ended:
                balancer.end()


def test_quiet_cpus_are_banned_beside_those_of_the_environment_and_given_back(make_host):
    host = make_host(environment={0})
    assert host.bring_about(demand(2, 3, 5)).balancers == ()
    assert host.balancer.commands == ["settings cpus 0,2-3,5"]
    host.bring_about(demand(2))
    assert host.count_changes()
    assert host.balancer.commands[1:] == ["settings cpus 0,2"]
    host.bring_about(NOTHING)
    assert host.balancer.commands[2:] == ["settings cpus NULL"]
    host.scan()
    host.bring_about(NOTHING)
    assert (host.balancer.banned, host.kept().bans) == ({0}, {})


def test_a_ban_is_written_once_and_again_if_a_scan_does_not_show_it(make_host):
    host = make_host()
    for _ in range(3):
        host.bring_about(demand(2))
    host.scan()
    host.bring_about(demand(2))
    assert host.balancer.commands == ["settings cpus 2"]
    host.balancer.from_user = frozenset({5})  # irqbalance-ui
    host.scan()
    host.bring_about(demand(2))
    assert host.balancer.commands == ["settings cpus 2"] * 2


def test_a_guest_that_comes_before_the_scan_after_another_one_left_changes_no_base(make_host):
    host = make_host(environment={0})
    host.bring_about(demand(2))
    host.scan()
    host.bring_about(NOTHING)
    host.start()  # the agent, too
    host.bring_about(demand(3))
    assert host.balancer.commands[-1] == "settings cpus 0,3"


def test_cpus_that_the_environment_bans_already_need_no_command(make_host):
    host = make_host(environment=DEDICATED)
    host.bring_about(demand(2, 3))
    assert (host.balancer.commands, host.kept().bans) == ([], {})


def test_another_process_of_irqbalance_gets_the_ban_again(make_host):
    host = make_host()
    host.bring_about(demand(2))
    host.restart(pid=78, environment={1})
    host.bring_about(demand(2))
    assert host.balancer.commands == ["settings cpus 1-2"]
    assert len(host.kept().bans) == 1
    # The same number again, after all others.
    host.restart(pid=78)
    host.bring_about(demand(2))
    assert host.balancer.commands == ["settings cpus 2"]
    host.balancer.end(leaves_socket=True)
    assert host.bring_about(demand(2)).balancers == ()
    assert host.kept().bans == {}


def test_a_host_without_irqbalance_has_nothing_to_say(make_host):
    host = make_host()
    host.balancer.end()
    assert host.bring_about(demand(2)).balancers == ()


def test_an_irqbalance_that_hangs_is_told_and_asked_again_later(make_host, monkeypatch):
    host = make_host(hangs=True)
    with monkeypatch.context() as patch:
        patch.setattr(irqbalance, "_ANSWER_SECONDS", 0.2)
        status = host.bring_about(demand(2))
    assert status.balancers == (
        f"irqbalance (process 77) may put interrupts on quiet CPUs again: {NO_ANSWER}",
    )
    host.balancer.wake()
    assert host.bring_about(demand(2)).balancers == status.balancers
    host.now += 31
    assert host.bring_about(demand(2)).balancers == ()
    assert host.balancer.commands == ["settings cpus 2"]


def test_a_ban_stays_in_the_record_while_irqbalance_does_not_take_it_back(make_host):
    host = make_host()
    host.bring_about(demand(2))
    kept = host.kept().bans
    host.balancer.answer = b"?"
    assert len(host.bring_about(NOTHING).balancers) == 1
    assert host.kept().bans == kept
    host.balancer.answer = None
    host.now += 31
    assert host.bring_about(NOTHING).balancers == ()
    host.scan()
    assert host.balancer.banned == frozenset()


@pytest.mark.parametrize(
    ("answer", "user", "reason"),
    [
        (b"SLEEP 10 BANNED zz", None, UNREADABLE),
        (b"BANNED 1", None, UNREADABLE),
        (b"\xff" * (1 << 17), None, UNREADABLE),
        (b"SLEEP 10 BANNED 123456789", None, UNREADABLE),
        (None, os.geteuid() + 1, REFUSED),
    ],
)
def test_other_answers_than_those_of_irqbalance_are_told_and_nothing_is_written(
    make_host, answer, user, reason
):
    host = make_host(answer=answer, user=user)
    [sentence] = host.bring_about(demand(2)).balancers
    assert sentence.endswith(reason)
    assert (host.balancer.commands, host.kept().bans) == ([], {})


def test_banned_interrupts_are_before_banned_cpus_in_the_answer(make_host):
    host = make_host(answer=b"SLEEP 10 IRQ 9 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000,00000001\0")
    host.bring_about(demand(2))
    assert host.balancer.commands == ["settings cpus 0,2"]


def test_the_socket_of_another_user_is_not_asked(make_host, monkeypatch):
    host = make_host()
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 1 << 20)
    else:
        os.chown(host.balancer.path, 1, 1)
    assert NOT_ROOTS in host.bring_about(demand(2)).balancers[0]
    assert host.balancer.commands == []


def test_files_and_links_are_no_sockets(tmp_path):
    folder = tmp_path / irqbalance.SOCKETS
    folder.mkdir(parents=True)
    (folder / "irqbalance1.sock").write_text("")
    (folder / "irqbalance2.sock").symlink_to("/run/systemd/notify")
    (folder / "other.sock").write_text("")
    seen, failures = BalancerSockets(tmp_path).read_bans()
    assert seen == {}
    assert set(failures.values()) == {NOT_ROOTS}
    with pytest.raises(BalancerGoneError):
        BalancerSockets(tmp_path).write_ban("../x@1", frozenset({1}))


def test_killed_at_any_write_the_next_agent_bans_and_gives_back(make_host):
    number = 0
    while True:
        host = make_host(environment={0})
        host.kernel.add_interrupt(30, "eth0", {2})
        host.kernel.kill_at = number
        try:
            for wanted in (demand(2, 3), demand(3), NOTHING):
                host.bring_about(wanted)
                host.scan()
        except Killed:
            host.kernel.kill_at = None
            host.start()
            host.bring_about(demand(3, 4))
            host.scan()
            assert host.balancer.banned == {0, 3, 4}
            host.start()
            host.bring_about(NOTHING)
            host.scan()
            host.bring_about(NOTHING)
            assert (host.balancer.banned, host.kept().bans) == ({0}, {})
            number += 1
        else:
            break
    assert number > 5


def test_killed_between_the_record_and_the_write_of_a_smaller_ban():
    kept = {KEY: KeptBan(frozenset(), frozenset({2}))}
    plan = decide_bans({KEY: SeenBan(frozenset({2, 3}))}, (), frozenset({2}), kept)
    assert plan.writes == {KEY: {2}}
    # A CPU that is too hot is banned by irqbalance itself.
    seen = {KEY: SeenBan(frozenset({2, 3}), frozenset({2}))}
    assert decide_bans(seen, (), frozenset({2}), kept).writes == {}


def test_bans_are_kept_in_the_file_of_originals_with_names_of_sockets_only(make_host):
    host = make_host(environment={0})
    host.bring_about(demand(2))
    [(key, ban)] = host.kept().bans.items()
    assert (key.split("@")[0], ban) == ("irqbalance77.sock", KeptBan(frozenset({0}), frozenset({0, 2})))
    content = dump_originals(OriginalMasks(bans={"../../etc/passwd@1": ban}))
    with pytest.raises(ValueError, match="irqbalance"):
        parse_originals(content)


def test_a_plan_of_bans_sends_no_command(make_host):
    host = make_host()
    assert host.isolator.plan_bans(demand(2, 3)) == ({2, 3},)
    assert host.isolator.plan_bans(NOTHING) == ()
    assert host.balancer.commands == []
