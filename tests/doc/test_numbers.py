"""Numbers on pages agree with the programs."""

import re

from compute_agent.agent.reload import SETTLE_SECONDS
from compute_agent.agent.service import LOOK_SECONDS
from placement.server import connection, worker
from tests.doc.pages import SITE, pages

PROXY = (SITE / "install" / "proxy.md").read_text(encoding="utf-8")


def limit(what: str) -> list[int]:
    """Return the numbers in one row of the table of limits."""
    (row,) = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", PROXY, flags=re.MULTILINE)
    return [int(number) for number in re.findall(r"\d+", row)]


def setting(name: str) -> int:
    """Return the value of a setting in the proxies' files, without its unit."""
    (value,) = re.findall(rf"^ *{name} (\d+)[sm];?$", PROXY, flags=re.MULTILINE)
    return int(value)


def test_the_limits_of_the_service_are_those_of_its_web_server() -> None:
    mebibyte = 1024**2
    assert limit("from the first byte of a request to the end of its headers") == [connection.HEADERS_TIMEOUT]
    assert limit("the request body") == [connection.BODY_TIMEOUT, connection.MAX_BODY // mebibyte]
    assert limit("until the client has read the response, or the next MiB of a longer one") == [
        connection.ANSWER_TIMEOUT
    ]
    assert limit("from one request of a connection to the next") == [connection.IDLE_TIMEOUT]
    assert limit("the request line, all headers") == [
        worker.MAX_REQUEST_LINE,
        connection.MAX_HEADERS // 1024,
    ]


def test_limits_of_the_proxies_on_the_page_match_them() -> None:
    for headers in ("timeout http-request", "client_header_timeout"):
        assert setting(headers) < connection.HEADERS_TIMEOUT
    assert setting("client_max_body_size") == connection.MAX_BODY // 1024**2
    for answer in ("timeout server", "proxy_read_timeout"):
        assert setting(answer) > connection.ANSWER_TIMEOUT


def test_pages_agree_about_the_seconds_until_the_agent_applies_a_changed_file() -> None:
    said = re.compile(r"agent applies [^.]*?within (\w+ \w+)")
    found = {
        page.stem: seconds for page in pages() for seconds in said.findall(" ".join(page.read_text().split()))
    }
    assert {"agent", "compute-agent-options", "change-cpu-sets", "guest-classes"} <= found.keys()
    assert set(found.values()) == {"three seconds"}, found
    # At the first look the file is perhaps still too new, and the next look reads it.
    assert LOOK_SECONDS + SETTLE_SECONDS < 3
