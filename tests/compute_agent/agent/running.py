"""Runs agents in the process of a test, against the real Placement service."""

from unittest import mock

from compute_agent.agent import reload
from compute_agent.agent.protocol import call_agent
from compute_agent.agent.service import HostAgent
from tests.compute_agent.builders import hold_resources, load_options
from tests.waits import wait_for


class RunningAgent:
    """An agent with its options. Tests call its methods and change its ini file."""

    def __init__(self, write_ini, client):
        self.write_ini = write_ini
        self.client = client
        self.ini = write_ini()
        self.start_again()
        self.wait_for(lambda: self.ask("status")["placement"] == "up")

    def start_again(self):
        """Start another agent after the agent before has ended."""
        self.agent = HostAgent(self.load_conf)
        self.agent.start()

    def restart(self):
        """Stop the agent, start another agent, and wait until it has reported to Placement."""
        self.agent.stop()
        self.start_again()
        self.wait_for(lambda: self.ask("status")["placement"] == "up")

    def reload_changes(self):
        """Apply changes of files as the main thread does, but without waiting for files that may still be
        written.
        """
        with mock.patch.object(reload, "SETTLE_SECONDS", 0):
            self.agent.reload_changes()

    def load_conf(self):
        return load_options(self.ini)

    def ask(self, method, **params):
        return call_agent(self.ini.parent / "state" / "agent.sock", method, params)

    def wait_for(self, condition):
        return wait_for(condition)

    def node(self):
        """The resource provider that has the CPUs of the host."""
        return self.agent.pipeline.host_state.tree.providers_of("VCPU")[0].uuid

    def claim(self, consumer, **resources):
        self.claim_on(consumer, {self.node(): resources})

    def claim_on(self, consumer, resources):
        """Claim resources for a consumer, by provider.

        :raises PlacementError: the service refuses the claim.
        """
        hold_resources(self.client, consumer, resources)

    def reports(self):
        """The number of successful reports to Placement."""
        return self.agent.metrics.registry.get_sample_value("compute_agent_reports_total", {"outcome": "ok"})

    def close(self):
        for guest in self.agent.driver.guests():
            self.agent.driver.stop(guest, 0)
        self.agent.stop()
