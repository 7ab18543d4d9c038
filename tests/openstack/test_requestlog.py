"""The log of the service has requests with their users."""

from tests.openstack.requestlog import LoggedRequest, asked

_LOG = """\
2026-11-22 15:19:26.122 1 INFO placement.requestlog [None req-1 - - - - - -] - "GET /" status: 200 len: 1
2026-11-22 15:19:26.130 1 INFO alembic.runtime.migration [-] Context impl MySQLImpl.
2026-11-22 15:24:28.273 1 INFO placement.requestlog [req-2 req-3 user project - - default default] 127.0.0.1 \
"GET /resource_providers?in_tree=1" status: 200 len: 18 microversion: 1.28 time: 0.1
2026-11-22 15:24:28.325 1 INFO placement.requestlog [None req-4 user project - - default default] 127.0.0.1 \
"PUT /allocations/1" status: 409 len: - microversion: 1.36 time: 0.1
"""


def test_requests_are_read_with_their_users(tmp_path):
    (tmp_path / "log").write_text(_LOG)
    found = asked(tmp_path / "log")
    assert found == [
        LoggedRequest("-", "GET", "/", 200),
        LoggedRequest("user", "GET", "/resource_providers", 200),
        LoggedRequest("user", "PUT", "/allocations/1", 409),
    ]
    assert [each.writes for each in found] == [False, False, True]
