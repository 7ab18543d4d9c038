"""Tests of the request that shows which QoS classes running guests would get with another configuration."""

import json
from dataclasses import replace

from compute_agent.agent.guest_settings import check_guests, input_document
from compute_agent.classification.resolution import AllowedSettings, ClassificationPolicy
from compute_agent.classification.rules import make_rule
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import GuestSettings, SettingSource
from compute_agent.pipeline.events import ConfigureGuest, GuestStarted
from compute_agent.report.history import ConsumerOwner
from tests.compute_agent.pipeline.fake_host import FakeHost

NOTHING = AllowedSettings("flavor_settings", {})


def test_each_guest_has_its_rule_and_what_would_change():
    host = FakeHost()
    guest = host.driver.create_guest("a", "worker", GuestSettings(spread=True), ())
    identity = GuestIdentity(flavor="big", extra_specs={"compute_agent:priority": "3"})
    guest = replace(guest, identity=identity, declared_by=SettingSource.DOMAIN)
    owner = ConsumerOwner("p", "u", "INSTANCE")
    host.handle(GuestStarted(guest, {"node0": {"VCPU": 1}}, owner=owner))
    host.handle(ConfigureGuest("a", {"memory_type": "dram"}))
    documents = json.loads(json.dumps([input_document(one) for one in host.pipeline.resolution_inputs()]))

    (unchanged,) = check_guests(ClassificationPolicy(), documents)
    assert unchanged == {"guest": "a", "name": "worker", "rule": "", "changes": [], "problems": []}

    matches = {"resource_class": ["VCPU"], "consumer_type": ["INSTANCE"], "flavor": ["b*"]}
    settings = {"qos_class": "BE", "memory_type": "cxl"}
    rules = (make_rule("night", 0, matches, settings),)
    (changed,) = check_guests(ClassificationPolicy(rules, allowed={SettingSource.FLAVOR: NOTHING}), documents)
    assert changed["rule"] == "night"
    assert changed["changes"] == ["qos_class: LS -> BE (rule night)", "priority: 3 -> 0 (default)"]
    assert "compute_agent:priority has no effect" in changed["problems"][0]
