"""Tests of a whole agent that claims for containers and services, with the service and fake peers."""

import errno
from dataclasses import replace

import pytest

from compute_agent.agent import assembly
from compute_agent.agent.release import ReleaseOptions, open_release
from compute_agent.drivers import factory
from compute_agent.loops import guest_claims, note_files
from compute_agent.loops.note_files import CLAIMS_FILE
from compute_agent.report.answers import ConcurrentUpdateError, PlacementError, UnavailableError
from compute_agent.report.client import PlacementClient
from compute_agent.report.guest_claims import CLAIM_NOTES
from tests.compute_agent.agent.running import RunningAgent

pytest.importorskip("jeepney", reason="needs jeepney, of the extra systemd")

from tests.compute_agent.agent.peer_kinds import Containers, Scopes, Services, Slices

pytestmark = pytest.mark.slow

LOST_ANSWERS = (
    UnavailableError("POST", "/ext/v1/claims", "no answer"),
    PlacementError("POST", "/ext/v1/claims", "the process has ended", status=500),
    PlacementError("POST", "/ext/v1/claims", "the answer is not JSON: ''", status=200),
)
UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
PINNED = {"class": "LSR", "memory": "64"}


@pytest.fixture(params=[Containers, Services, Scopes, Slices])
def kind(request, tmp_path, monkeypatch):
    folder = tmp_path / "peer"
    folder.mkdir()
    kind = request.param(folder, monkeypatch)
    monkeypatch.setattr(factory, "HostFolders", lambda *folders: kind.peer.folders)
    yield kind
    kind.peer.close()


@pytest.fixture
def start_agent(two_cpus, write_ini, client, kind):
    """Start an agent that claims, with CPU 0 dedicated and CPU 1 shared."""
    rigs = []

    def start_agent(*options):
        lines = ("claim = true", "claim_grace = 0", "reconcile_interval = 0.3", "stop_timeout = 1", *options)

        def write():
            guests = "\n".join((f"drivers = {kind.option}, process", *lines))
            return write_ini(guests=guests, **kind.section)

        rigs.append(RunningAgent(write, client))
        return rigs[-1]

    yield start_agent
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(start_agent):
    return start_agent()


def held(rig, consumer):
    """All amounts of a consumer."""
    return list(rig.client.get_allocations(consumer).resources.values())


def shown(rig, name):
    return next((row for row in rig.ask("guest.list") if row["name"] == name), {"kind": ""})


def refusals(rig):
    return rig.ask("status")["unclaimed_guests"]


class TestClaims:
    def test_a_guest_without_an_allocation_gets_one_and_is_pinned(self, rig, kind):
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"] == "dedicated")
        record = rig.client.get_allocations(kind.uuid)
        assert record.resources == {rig.node(): {"PCPU": 1, "MEMORY_MB": 64}}
        assert record.consumer_type == "HOST_GUEST"
        assert refusals(rig) == []

    def test_a_guest_that_starts_on_a_disabled_host_gets_a_claim(self, rig, kind):
        rig.ask("host.disable", reason="new memory")
        rig.wait_for(lambda: rig.ask("status")["new_guests"] == "kept away by maintenance")
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"] == "dedicated")

    def test_guests_of_other_classes_get_shared_cpus(self, rig, kind):
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"VCPU": 1}])

    def test_guests_of_the_start_of_the_agent_get_claims(self, start_agent, kind):
        kind.start(**PINNED)
        rig = start_agent()
        rig.wait_for(lambda: shown(rig, kind.name)["kind"] == "dedicated")

    def test_the_project_and_the_user_are_options(self, start_agent, kind):
        rig = start_agent("claim_project = p1", "claim_user = u1", "claim_dedicated = LS")
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"PCPU": 1}])
        record = rig.client.get_allocations(kind.uuid)
        assert (record.project_id, record.user_id) == ("p1", "u1")

    def test_an_allocation_that_exists_is_used_and_never_given_back(self, rig, kind):
        rig.claim(UUID, PCPU=1)
        kind.start(uuid=UUID)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"] == "dedicated")
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        for _ in range(2):
            assert rig.agent.reports.report_now()
        assert held(rig, UUID) == [{"PCPU": 1}]

    def test_a_uuid_of_another_consumer_is_refused(self, rig, kind):
        other = "6b0c0f5e-0000-4f2c-8f0e-000000000001"
        rig.client.create_provider(other, "other host", None)
        rig.client.set_inventories(other, {"VCPU": {"total": 4}}, 0)
        rig.claim_on(UUID, {other: {"VCPU": 1}})
        kind.start(uuid=UUID)
        rig.wait_for(lambda: refusals(rig))
        (reason,) = refusals(rig)
        assert "belongs to a consumer in Placement that is not the agent's" in reason
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        for _ in range(2):
            assert rig.agent.reports.report_now()
        assert held(rig, UUID) == [{"VCPU": 1}]
        assert refusals(rig) == []

    @pytest.mark.parametrize("settings", [{"memory": "99999999999"}, {"memory": "-1"}, {"memory": "1G"}])
    def test_memory_that_is_no_amount_is_a_lost_guest(self, rig, kind, settings):
        kind.start(**settings)
        rig.wait_for(lambda: rig.ask("status")["lost_guests"])
        assert "not a whole number from 1 to 2147483647" in str(rig.ask("status")["lost_guests"])
        assert held(rig, kind.uuid) == []


def _not_answered(*_):
    raise LOST_ANSWERS[1]


class TestRoom:
    def test_a_guest_without_room_runs_on_shared_cpus_with_a_reason(self, rig, kind, caplog):
        kind.start(vcpus="4096", memory="2147483647", **{"class": "LSR"})
        rig.wait_for(lambda: refusals(rig))
        (reason,) = refusals(rig)
        assert reason.startswith(f"{kind.name} ({kind.uuid}): ")
        assert "There is no candidate" in reason
        assert (shown(rig, kind.name)["kind"], kind.is_running()) == ("unallocated", True)
        assert (
            caplog.text.count(
                f"Guest {kind.name} ({kind.uuid}) does not get its claim, and the agent tries again"
            )
            == 1
        )

    def test_a_guest_without_room_has_class_be_until_its_claim_succeeds(
        self, start_agent, kind, monkeypatch, caplog
    ):
        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        rig = start_agent()
        rig.claim(UUID, PCPU=1)
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name).get("qos_class") == "BE")
        guest = shown(rig, kind.name)
        assert (guest["deferred_class"], guest["setting_sources"]["qos_class"]) == ("LSR", "no room")
        assert (
            "this host has no room for its claim: it has class BE now, and gets class LSR" in guest["reason"]
        )
        warning = "has class BE until this host has room for its claim, and then class LSR"
        assert warning in caplog.text
        # Placement gives the next agent no certain answer.
        monkeypatch.setattr(PlacementClient, "claim_place", _not_answered)
        classes = []
        rig.restart()
        for _ in range(3):
            rig.agent.reports.report_now()
            classes.append(shown(rig, kind.name)["qos_class"])
        assert classes == ["BE"] * 3
        assert caplog.text.count(warning) == 1
        monkeypatch.undo()
        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        rig.client.set_allocations(replace(rig.client.get_allocations(UUID), resources={}))
        rig.wait_for(lambda: rig.agent.reports.report_now() and shown(rig, kind.name)["kind"] == "dedicated")
        guest = shown(rig, kind.name)
        assert (guest["qos_class"], guest["deferred_class"], guest["reason"]) == ("LSR", "", "")
        assert held(rig, kind.uuid) == [{"PCPU": 1, "MEMORY_MB": 64}]

    def test_a_refused_claim_is_tried_again_after_a_pause_only(self, rig, kind, live_placement):
        kind.start(vcpus="2", **{"class": "LSR"})
        rig.wait_for(lambda: refusals(rig))
        live_placement.writes()
        for _ in range(3):
            rig.agent.reports.report_now()
        assert ("POST", "/ext/v1/claims") not in live_placement.writes()

    def test_a_guest_without_room_is_stopped_if_the_option_says_so(self, start_agent, kind):
        rig = start_agent("no_room = stop")
        rig.wait_for(lambda: rig.agent.reports.report_now())
        kind.start(vcpus="2", **{"class": "LSR"})
        rig.wait_for(lambda: not kind.is_running())
        rig.wait_for(lambda: rig.ask("guest.list") == [])

    def test_a_guest_that_has_run_for_some_time_is_not_stopped(self, start_agent, kind, caplog, monkeypatch):
        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        rig = start_agent("no_room = stop")
        rig.wait_for(lambda: rig.agent.reports.report_now())
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        record = rig.client.get_allocations(kind.uuid)
        rig.client.set_allocations(replace(record, resources={}))
        rig.claim(UUID, PCPU=1)
        for _ in range(4):
            assert rig.agent.reports.report_now()
        assert refusals(rig)
        assert (kind.is_running(), "was stopped" in caplog.text) == (True, False)

    def test_a_change_that_has_no_room_is_made_later(self, start_agent, kind, monkeypatch, tmp_path):
        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        rig = start_agent("claim_grace = 60")
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"VCPU": 1}])
        rig.claim(UUID, PCPU=1)
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        kind.start(**PINNED)
        rig.wait_for(lambda: rig.agent.reports.report_now() and refusals(rig))
        assert held(rig, kind.uuid) == [{"VCPU": 1}]

        def noted():
            (note,) = CLAIM_NOTES.parse((tmp_path / "state" / CLAIMS_FILE).read_bytes()).values()
            return note.amounts, note.former

        # During an attempt, the note has the wanted amounts, too.
        rig.wait_for(lambda: noted() == ({"VCPU": 1}, {}))
        rig.client.set_allocations(replace(rig.client.get_allocations(UUID), resources={}))
        rig.wait_for(
            lambda: rig.agent.reports.report_now() and held(rig, kind.uuid) == [{"PCPU": 1, "MEMORY_MB": 64}]
        )
        assert refusals(rig) == []

    def test_a_service_that_ran_before_the_agent_may_change_its_main_process(
        self, start_agent, kind, monkeypatch, caplog
    ):
        if kind.name != Services.name:
            pytest.skip("only a service can choose its main process")
        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        kind.start(vcpus="2", **{"class": "LSR"})
        rig = start_agent("no_room = stop")
        rig.wait_for(lambda: refusals(rig))
        kind.peer.replace_main(kind.name)
        rig.wait_for(lambda: shown(rig, kind.name).get("pid") in kind.pids())
        for _ in range(3):
            assert rig.agent.reports.report_now()
        assert (kind.is_running(), "was stopped" in caplog.text) == (True, False)

    def test_a_guest_that_ran_before_the_agent_is_not_stopped(self, start_agent, kind):
        kind.start(vcpus="2", **{"class": "LSR"})
        rig = start_agent("no_room = stop")
        rig.wait_for(lambda: refusals(rig))
        assert kind.is_running()


class TestEnds:
    def test_a_guest_that_is_gone_for_good_gives_its_claim_back(self, rig, kind):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        kind.end()
        rig.wait_for(lambda: rig.agent.reports.report_now() and not held(rig, kind.uuid))

    def test_a_peer_that_is_away_costs_no_claim(self, rig, kind):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        kind.peer.go_away()
        kind.end()
        rig.restart()
        for _ in range(3):
            rig.agent.reports.report_now()
        assert held(rig, kind.uuid)
        kind.peer.listen()
        rig.wait_for(lambda: rig.agent.reports.report_now() and not held(rig, kind.uuid))

    def test_a_claim_outlives_a_restart_of_agent_and_guest(self, start_agent, kind):
        rig = start_agent("claim_grace = 60")
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        generation = rig.client.get_allocations(kind.uuid).generation
        rig.restart()
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        assert rig.agent.reports.report_now()
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"] == "dedicated")
        assert rig.agent.reports.report_now()
        assert rig.client.get_allocations(kind.uuid).generation == generation

    def test_a_guest_that_ends_while_the_agent_is_away_gives_back(self, rig, kind):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        rig.agent.stop()
        kind.end()
        rig.start_again()
        rig.wait_for(lambda: rig.agent.reports.report_now() and not held(rig, kind.uuid))

    def test_an_allocation_that_another_program_changed_stays(self, rig, kind, caplog):
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid))
        record = rig.client.get_allocations(kind.uuid)
        rig.client.set_allocations(
            type(record)(
                kind.uuid,
                {rig.node(): {"PCPU": 1}},
                record.generation,
                record.project_id,
                record.user_id,
                record.consumer_type,
            )
        )
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        rig.wait_for(
            lambda: rig.agent.reports.report_now() and "another program has changed it" in caplog.text
        )
        assert held(rig, kind.uuid) == [{"PCPU": 1}]

    def test_a_guest_that_is_made_again_with_other_wishes_changes_its_claim(self, start_agent, kind):
        rig = start_agent("claim_grace = 60")
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"VCPU": 1}])
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"])
        rig.wait_for(
            lambda: rig.agent.reports.report_now() and held(rig, kind.uuid) == [{"PCPU": 1, "MEMORY_MB": 64}]
        )


class TestFailures:
    def test_a_claim_waits_for_a_service_that_is_away(self, rig, kind, live_placement):
        live_placement.stop()
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"])
        live_placement.start()
        rig.wait_for(lambda: shown(rig, kind.name)["kind"] == "dedicated")

    @pytest.mark.parametrize("error", LOST_ANSWERS, ids=lambda error: str(error.status))
    def test_a_claim_without_a_usable_answer_is_found_again(self, rig, kind, monkeypatch, error):
        claim_place = PlacementClient.claim_place

        def lose_answer(*arguments):
            claim_place(*arguments)
            raise error

        monkeypatch.setattr(PlacementClient, "claim_place", lose_answer)
        kind.start(**PINNED)
        rig.wait_for(lambda: rig.agent.reports.report_now() and shown(rig, kind.name)["kind"] == "dedicated")
        monkeypatch.setattr(PlacementClient, "claim_place", claim_place)
        kind.end()
        rig.wait_for(lambda: rig.agent.reports.report_now() and not held(rig, kind.uuid))

    @pytest.mark.parametrize("error", LOST_ANSWERS, ids=lambda error: str(error.status))
    @pytest.mark.parametrize("is_changed", [False, True])
    def test_a_change_without_a_usable_answer_is_found_again(
        self, start_agent, kind, monkeypatch, error, is_changed
    ):
        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        rig = start_agent("claim_grace = 1")
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"VCPU": 1}])
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        claim_place, lost = PlacementClient.claim_place, []

        def lose_answer(*arguments):
            monkeypatch.setattr(PlacementClient, "claim_place", claim_place)
            if is_changed:
                claim_place(*arguments)
            lost.append(arguments)
            raise error

        monkeypatch.setattr(PlacementClient, "claim_place", lose_answer)
        kind.start(**PINNED)
        rig.wait_for(lambda: lost)
        rig.wait_for(
            lambda: rig.agent.reports.report_now() and held(rig, kind.uuid) == [{"PCPU": 1, "MEMORY_MB": 64}]
        )
        kind.end()
        rig.wait_for(lambda: rig.agent.reports.report_now() and not held(rig, kind.uuid))

    @pytest.mark.parametrize("is_claimed", [False, True])
    def test_an_agent_that_is_killed_in_a_claim_leaves_no_lost_claim(
        self, rig, kind, monkeypatch, is_claimed, tmp_path
    ):
        claim_place, killed = PlacementClient.claim_place, []

        def die(*arguments):
            if is_claimed:
                claim_place(*arguments)
            killed.append((tmp_path / "state" / CLAIMS_FILE).read_bytes())
            raise UnavailableError("POST", "/ext/v1/claims", "killed")

        monkeypatch.setattr(PlacementClient, "claim_place", die)
        kind.start(**PINNED)
        rig.wait_for(lambda: killed)
        rig.agent.stop()
        monkeypatch.setattr(PlacementClient, "claim_place", claim_place)
        (tmp_path / "state" / CLAIMS_FILE).write_bytes(killed[0])
        rig.start_again()
        rig.wait_for(lambda: shown(rig, kind.name)["kind"] == "dedicated")
        kind.end()
        rig.wait_for(lambda: rig.agent.reports.report_now() and not held(rig, kind.uuid))

    @pytest.mark.parametrize("is_changed", [False, True])
    def test_an_agent_that_is_killed_in_a_change_leaves_no_lost_claim(
        self, start_agent, kind, monkeypatch, is_changed, tmp_path
    ):
        rig = start_agent("claim_grace = 60")
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"VCPU": 1}])
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        claim_place, killed = PlacementClient.claim_place, []

        def die(*arguments):
            if is_changed:
                claim_place(*arguments)
            killed.append((tmp_path / "state" / CLAIMS_FILE).read_bytes())
            raise UnavailableError("POST", "/ext/v1/claims", "killed")

        monkeypatch.setattr(PlacementClient, "claim_place", die)
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"])
        rig.wait_for(lambda: rig.agent.reports.report_now() or killed)
        rig.agent.stop()
        monkeypatch.setattr(PlacementClient, "claim_place", claim_place)
        (tmp_path / "state" / CLAIMS_FILE).write_bytes(killed[0])
        rig.start_again()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"PCPU": 1, "MEMORY_MB": 64}])
        (note,) = CLAIM_NOTES.parse((tmp_path / "state" / CLAIMS_FILE).read_bytes()).values()
        assert note.amounts == {"PCPU": 1, "MEMORY_MB": 64}

    def test_a_change_at_the_same_time_as_another_program_is_made_later(self, start_agent, kind, monkeypatch):
        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        rig = start_agent("claim_grace = 60")
        kind.start()
        rig.wait_for(lambda: held(rig, kind.uuid) == [{"VCPU": 1}])
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        claim_place, reasons = PlacementClient.claim_place, []

        def meet(client, consumer, *arguments):
            monkeypatch.setattr(PlacementClient, "claim_place", claim_place)
            client.set_allocations(client.get_allocations(consumer.consumer))
            try:
                return claim_place(client, consumer, *arguments)
            except ConcurrentUpdateError as error:
                reasons.append(error)
                raise

        monkeypatch.setattr(PlacementClient, "claim_place", meet)
        kind.start(**PINNED)
        rig.wait_for(lambda: shown(rig, kind.name)["kind"])
        rig.wait_for(
            lambda: rig.agent.reports.report_now() and held(rig, kind.uuid) == [{"PCPU": 1, "MEMORY_MB": 64}]
        )
        assert reasons
        assert refusals(rig) == []

    def test_a_full_disk_costs_a_claim_but_no_report(self, rig, kind, monkeypatch, caplog):
        def fail(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(guest_claims, "_FIRST_PAUSE", 0)
        with monkeypatch.context() as full_disk:
            full_disk.setattr(note_files, "write_durably", fail)
            kind.start(**PINNED)
            rig.wait_for(lambda: refusals(rig))
            for _ in range(2):
                assert rig.agent.reports.report_now()
            assert "the note of its claim cannot be written: [Errno 28]" in str(refusals(rig))
            assert caplog.text.count("The notes of claims cannot be written") == 1
            assert held(rig, kind.uuid) == []
        rig.wait_for(lambda: rig.agent.reports.report_now() and held(rig, kind.uuid))

    def test_claims_of_a_driver_that_is_not_used_any_more_are_named(self, rig, kind, caplog):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        rig.agent.stop()
        rig.ini.write_text(
            rig.ini.read_text().replace(f"drivers = {kind.option}, process", "drivers = process")
        )
        rig.start_again()
        assert f"does not give back its claims for guests of driver {kind.option}, because" in caplog.text
        assert rig.agent.parts.guest_claims.claimed_guests() == frozenset()

    def test_a_copy_of_the_state_folder_gives_back_no_claim(self, rig, kind, tmp_path, caplog, monkeypatch):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        rig.agent.stop()
        kind.end()
        first_host = assembly.read_host_id
        monkeypatch.setattr(assembly, "read_host_id", lambda root: "0" * 32)
        rig.start_again()
        assert "The state folder has claims of another host" in caplog.text
        (shown,) = rig.ask("status")["claims_of_another_host"]
        assert shown.startswith(kind.name)
        for _ in range(2):
            assert rig.agent.reports.report_now()
        assert held(rig, kind.uuid)
        # The first host still gives its claim back.
        rig.agent.stop()
        monkeypatch.setattr(assembly, "read_host_id", first_host)
        rig.start_again()
        rig.wait_for(lambda: rig.agent.reports.report_now() and not held(rig, kind.uuid))
        assert rig.ask("status")["claims_of_another_host"] == []

    def test_damaged_notes_cost_no_allocation(self, rig, kind, tmp_path, caplog):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        rig.agent.stop()
        (tmp_path / "state" / CLAIMS_FILE).write_bytes(b"{")
        rig.start_again()
        assert "The agent cannot use its file with the notes of claims" in caplog.text
        kind.end()
        rig.wait_for(lambda: rig.ask("guest.list") == [])
        rig.wait_for(lambda: rig.agent.reports.report_now())
        assert held(rig, kind.uuid)

    def test_a_release_names_claims_and_gives_them_back_if_it_is_asked_to(self, rig, kind, tmp_path):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        (row,) = (one for one in rig.ask("release.survey") if one["kind"] == "claim")
        assert row["name"].startswith(kind.name)
        assert (row["detail"], row["outcome"]) == ("64 MEMORY_MB, 1 PCPU", "stays: --claims gives it back")
        rig.agent.stop()
        for options, outcome in (
            (ReleaseOptions(), "stays: --claims gives it back"),
            (ReleaseOptions(claims=True), "given back"),
        ):
            with open_release(rig.load_conf(), options, 10.0) as release:
                assert [one.outcome for one in release.carry_out() if one.kind == "claim"] == [outcome]
            assert bool(held(rig, kind.uuid)) is (outcome != "given back")
        assert CLAIM_NOTES.parse((tmp_path / "state" / CLAIMS_FILE).read_bytes()) == {}
        rig.start_again()

    def test_a_release_keeps_a_claim_that_another_program_has_changed(self, rig, kind):
        kind.start(**PINNED)
        rig.wait_for(lambda: held(rig, kind.uuid))
        rig.agent.stop()
        record = rig.client.get_allocations(kind.uuid)
        rig.client.set_allocations(replace(record, resources={rig.node(): {"PCPU": 1}}))
        with open_release(rig.load_conf(), ReleaseOptions(claims=True), 10.0) as release:
            (row,) = (one for one in release.carry_out() if one.kind == "claim")
        assert (row.detail, row.outcome) == ("1 PCPU", "stays: another program has changed it")
        assert held(rig, kind.uuid)
        rig.start_again()
