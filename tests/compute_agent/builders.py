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
from compute_agent.report.transport import UNTYPED_MICROVERSION
from tests.placement.builders import claim_body


def cpu_set(*numbers):
    """The CPUs of these numbers."""
    return frozenset(numbers)


def load_options(*files):
    """The configuration in these files; without files all options have their defaults."""
    return agent_conf.load([], [str(file) for file in files])


def load_text(folder, text):
    """The configuration in a file with this text, which is written to the folder."""
    path = folder / "agent.conf"
    path.write_text(text)
    return load_options(path)


def make_pipeline(world, driver, metrics=None, save=lambda *saved: None, kind=GuestPipeline, recorder=None):
    """A pipeline that pins guests. The state is dropped unless ``save`` stores the state."""
    return kind(world, driver, (CpusetController(driver),), save, metrics or AgentMetrics(), recorder)


class CalledPipeline(GuestPipeline):
    """A pipeline without its thread: tests call ``handle_event``. It counts as alive and ready."""

    is_alive = has_taken_over = True


def has_thread(spec):
    """Whether a thread of this role lives in this process.

    :param spec: the row of the table of threads.
    """
    return any(thread.name == spec.name for thread in threading.enumerate())


def build_guest(uuid, *, pid=100, driver="fake", cgroup="", **settings):
    """A guest that is named by its uuid, with these settings."""
    return Guest(uuid, driver, uuid, pid, GuestSettings(**settings), cgroup)


def hold_resources(client, consumer, amounts, **fields):
    """Have a consumer hold these amounts by provider and resource class and nothing else, or nothing at all.

    :raises PlacementError: it is refused.
    """
    held = {provider: resources for provider, resources in amounts.items() if resources}
    body = claim_body(held, client.get_allocations(consumer).generation, **fields)
    client.send_request("PUT", f"/allocations/{consumer}", body)


def hold_untyped(client, consumer, amounts):
    """The same for a consumer that has no type, as clients before microversion 1.38 have it."""
    body = claim_body(amounts, client.get_allocations(consumer).generation)
    del body["consumer_type"]
    client.send_request("PUT", f"/allocations/{consumer}", body, UNTYPED_MICROVERSION)


def release_resources(client, consumer):
    """Have a consumer hold nothing any more.

    :raises NotFoundError: it holds nothing.
    """
    client.send_request("DELETE", f"/allocations/{consumer}")


def find_view(pipeline, uuid):
    """The view of a guest that a pipeline shows.

    :raises StopIteration: there is no such guest.
    """
    return next(view for view in pipeline.guest_views() if view.guest.uuid == uuid)


def read_metric(metrics, name, **labels):
    """The value of a series of the agent; None if there is none."""
    return metrics.registry.get_sample_value(f"compute_agent_{name}", labels)
