"""Builders for tests of the agent: guests, and allocations of consumers at a Placement.

Hosts are made by :mod:`tests.compute_agent.inventory.machines`, drivers by :mod:`tests.compute_agent.fakes`,
pipelines on a fake host by :mod:`tests.compute_agent.pipeline.fake_host`.
"""

import threading

from compute_agent import conf as agent_conf
from compute_agent.controllers.cpu import CpusetController
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.client import PlacementClient
from compute_agent.report.transport import UNTYPED_MICROVERSION
from tests.placement.builders import claim_body


def cpu_set(*numbers):
    """The set of the CPUs with these numbers."""
    return frozenset(numbers)


def load_options(*files):
    """The agent's configuration from these files. Without files, all options have their defaults."""
    return agent_conf.load([], [str(file) for file in files])


def load_text(folder, text):
    """The agent's configuration from a file with this text. The file is written to the folder."""
    path = folder / "agent.conf"
    path.write_text(text)
    return load_options(path)


def make_client(tmp_path, url, more="connect_retries = 0\nstatus_code_retries = 0"):
    """A client of the server at `url` without authentication. `more` has further options of [placement]."""
    text = f"[placement]\nauth_type = none\nendpoint_override = {url}\n{more}\n"
    return PlacementClient.from_conf(load_text(tmp_path, text))


def make_pipeline(world, driver, metrics=None, save=lambda *saved: None, kind=GuestPipeline, recorder=None):
    """A pipeline that pins guests to CPUs. It saves no state unless ``save`` does."""
    return kind(world, driver, (CpusetController(driver),), save, metrics or AgentMetrics(), recorder)


class CalledPipeline(GuestPipeline):
    """A pipeline without a thread of its own: tests call ``handle_event``. It counts as alive and ready."""

    is_alive = has_taken_over = True


def has_thread(spec):
    """Whether this process has a thread with this role.

    :param spec: the role's row in the table of the agent's threads.
    """
    return any(thread.name == spec.name for thread in threading.enumerate())


def build_guest(uuid, *, pid=100, driver="fake", cgroup="", **settings):
    """A guest with the given settings. Its name is its uuid."""
    return Guest(uuid, driver, uuid, pid, GuestSettings(**settings), cgroup)


def hold_resources(client, consumer, amounts, **fields):
    """Replace the allocations of a consumer by these amounts, given by provider and resource class.

    Without amounts the consumer holds nothing afterwards.

    :raises PlacementError: Placement refuses the change.
    """
    held = {provider: resources for provider, resources in amounts.items() if resources}
    body = claim_body(held, client.get_allocations(consumer).generation, **fields)
    client.send_request("PUT", f"/allocations/{consumer}", body)


def hold_untyped(client, consumer, amounts):
    """Replace the allocations of a consumer without a type, as clients below microversion 1.38 write them."""
    body = claim_body(amounts, client.get_allocations(consumer).generation)
    del body["consumer_type"]
    client.send_request("PUT", f"/allocations/{consumer}", body, UNTYPED_MICROVERSION)


def release_resources(client, consumer):
    """Delete the allocations of a consumer.

    :raises NotFoundError: the consumer has no allocations.
    """
    client.send_request("DELETE", f"/allocations/{consumer}")


def find_view(pipeline, uuid):
    """The view of a guest in a pipeline.

    :raises StopIteration: the pipeline has no such guest.
    """
    return next(view for view in pipeline.guest_views() if view.guest.uuid == uuid)


def read_metric(metrics, name, **labels):
    """The value of one series of the agent's metrics; None if there is no such series."""
    return metrics.registry.get_sample_value(f"compute_agent_{name}", labels)
