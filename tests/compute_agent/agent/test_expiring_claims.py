"""Tests of a guest with a claim that expires: the agent warns, or confirms the claim if the option is set."""

import pytest

from tests.placement.builders import new_claim

pytestmark = pytest.mark.slow

UID = "3f1c9a5e-0000-4000-8000-000000000101"


def start(rig, seconds=600):
    """Start a guest with a claim that expires after `seconds`, and report once."""
    claim = new_claim("resources=PCPU:1", consumer_uuid=UID, expires_in=seconds)
    rig.client.send_request("POST", "/ext/v1/claims", {"claims": [claim]})
    rig.ask("guest.run", uuid=UID, name="web", command=["sleep", "60"])
    assert rig.agent.reports.report_now()


def told(rig, caplog):
    return [it for it in caplog.records if it.name == "compute_agent.loops.allocations"]


def test_a_claim_that_expires_under_a_guest_is_logged_once_and_shown(rig, caplog):
    start(rig)
    assert rig.ask("guest.show", guest="web")["claim_expires"].startswith("20")
    assert rig.agent.reports.report_now()
    (line,) = told(rig, caplog)
    assert line.levelname == "WARNING"
    assert f"Guest web ({UID}) loses its allocation in" in line.getMessage()
    assert "confirm_claims" in line.getMessage()
    claim = rig.client.expiring_claim(UID)
    rig.client.confirm_claim(UID, claim.generation)
    assert rig.agent.reports.report_now()
    assert rig.ask("guest.show", guest="web")["claim_expires"] == ""


def test_a_cpu_is_free_for_the_next_guest_as_soon_as_its_claim_expires(rig):
    start(rig, seconds=5)
    assert rig.ask("guest.show", guest="web")["kind"] == "dedicated"
    rig.wait_for(lambda: rig.ask("guest.show", guest="web")["kind"] == "unallocated")
    other = "3f1c9a5e-0000-4000-8000-000000000102"
    claim = new_claim("resources=PCPU:1", consumer_uuid=other)
    rig.client.send_request("POST", "/ext/v1/claims", {"claims": [claim]})
    assert rig.ask("guest.run", uuid=other, command=["sleep", "60"])["cpus"] == "0"


def test_the_agent_confirms_claims_where_an_option_asks_for_it(rig, caplog):
    caplog.set_level("INFO", "compute_agent")
    rig.agent.stop()
    rig.ini = rig.write_ini(guests="drivers = process\nconfirm_claims = true")
    rig.start_again()
    rig.wait_for(lambda: rig.ask("status")["placement"] == "up")
    start(rig)
    assert rig.client.expiring_claim(UID) is None
    assert rig.client.get_allocations(UID).resources == {rig.node(): {"PCPU": 1}}
    assert [it.levelname for it in told(rig, caplog)] == ["INFO"]
    assert rig.ask("guest.show", guest="web")["claim_expires"] == ""
