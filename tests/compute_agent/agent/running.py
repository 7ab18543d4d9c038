"""Agents in the process of a test, on the real service."""

from unittest import mock

from compute_agent.agent import reload
from compute_agent.agent.protocol import call_agent
from compute_agent.agent.service import HostAgent
from tests.compute_agent.builders import hold_resources, load_options
from tests.waits import wait_for


class RunningAgent:
    """An agent with its options, calls of its methods and changes of its ini file."""

    def __init__(self, write_ini, client):
        self.write_ini = write_ini
        self.client = client
        self.ini = write_ini()
        self.start_again()
        self.wait_for(lambda: self.ask("status")["placement"] == "up")

    def start_again(self):
        """Start another agent, after the one before has ended."""
        self.agent = HostAgent(self.load_conf)
        self.agent.start()

    def restart(self):
        """Stop the agent, start another one, and wait until it has Placement."""
        self.agent.stop()
        self.start_again()
        self.wait_for(lambda: self.ask("status")["placement"] == "up")

    def reload_changes(self):
        """Apply changes as the main thread does, but do not wait for files that may still be written."""
        with mock.patch.object(reload, "SETTLE_SECONDS", 0):
            self.agent.reload_changes()

    def load_conf(self):
        return load_options(self.ini)

    def ask(self, method, **params):
        return call_agent(self.ini.parent / "state" / "agent.sock", method, params)

    def wait_for(self, condition):
        return wait_for(condition)

    def node(self):
        """The provider that has the CPUs."""
        return self.agent.pipeline.host_state.tree.providers_of("VCPU")[0].uuid

    def claim(self, consumer, **resources):
        self.claim_on(consumer, {self.node(): resources})

    def claim_on(self, consumer, resources):
        """Claim resources by provider; raises PlacementError if the service refuses."""
        hold_resources(self.client, consumer, resources)

    def reports(self):
        """The number of successful reports."""
        return self.agent.metrics.registry.get_sample_value("compute_agent_reports_total", {"outcome": "ok"})

    def close(self):
        for guest in self.agent.driver.guests():
            self.agent.driver.stop(guest, 0)
        self.agent.stop()
