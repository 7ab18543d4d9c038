"""Makes clients of Placement for tests."""

from compute_agent.report.client import PlacementClient
from tests.compute_agent.builders import load_text


def make_client(tmp_path, url, more="connect_retries = 0\nstatus_code_retries = 0"):
    """A client of the server at `url` without authentication. `more` has further options of [placement]."""
    text = f"[placement]\nauth_type = none\nendpoint_override = {url}\n{more}\n"
    return PlacementClient.from_conf(load_text(tmp_path, text))
