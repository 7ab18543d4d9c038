"""Tests of request ids, and of the log line about each request."""

import copy
import logging
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oslo_config import cfg
from oslo_context.context import RequestContext
from oslo_log import log
from oslo_log.formatters import ContextFormatter

from placement.api import request_log
from placement.api.auth import add_authentication
from placement.api.request_log import LineFormatter, RequestLog

ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
GIVEN = "req-00000000-1111-2222-3333-444444444444"
TOKEN = {"X-Auth-Token": "ann:p"}


@pytest.fixture
def client(handlers, conf, client_of):
    return client_of(RequestLog(add_authentication(handlers, conf)))


@pytest.fixture
def lines(caplog):
    """The log lines of requests, without the duration."""
    caplog.set_level(logging.INFO, logger="placement.requestlog")

    def lines():
        messages = [record.getMessage() for record in caplog.records if record.name == "placement.requestlog"]
        assert all(re.search(r" time: \d+\.\d{6}$", message) for message in messages)
        return [message.rsplit(" time: ", 1)[0] for message in messages]

    return lines


def test_the_answer_names_the_request_as_its_log_records_do(client, handlers):
    answer = client.get("/traits", headers=TOKEN)
    assert ID.fullmatch(answer.headers["x-openstack-request-id"])
    assert handlers.caller.request_id == answer.headers["x-openstack-request-id"]


def test_a_refusal_has_a_request_id_too(client):
    answer = client.get("/traits", status=401)
    assert answer.json["errors"][0]["request_id"] == answer.headers["x-openstack-request-id"]


def test_no_two_requests_have_the_same_id(client):
    ids = {client.get("/traits", headers=TOKEN).headers["x-openstack-request-id"] for _ in range(40)}
    assert len(ids) == 40
    made = [uuid.UUID(each.removeprefix("req-")) for each in ids]
    assert {(each.version, each.variant) for each in made} == {(4, uuid.RFC_4122)}


def test_the_id_that_the_client_gave_is_kept_beside_ours(client, handlers):
    answer = client.get("/traits", headers={**TOKEN, "X-Openstack-Request-Id": GIVEN})
    assert handlers.caller.global_request_id == GIVEN
    assert answer.headers["x-openstack-request-id"] != GIVEN


@pytest.mark.parametrize("given", ["", "1234", GIVEN + "0", GIVEN.upper(), "req-x\t"])
def test_an_id_of_another_form_is_not_kept(client, handlers, given):
    client.get("/traits", headers={**TOKEN, "X-Openstack-Request-Id": given})
    assert handlers.caller.global_request_id is None


def test_every_request_leaves_one_line(client, handlers, lines):
    handlers.headers.append(("openstack-api-version", "placement 1.39"))
    client.get("/traits?name=in:A,B", headers=TOKEN, extra_environ={"REMOTE_ADDR": "192.0.2.7"})
    assert lines() == ['192.0.2.7 "GET /traits?name=in:A,B" status: 200 len: 2 microversion: 1.39']


def test_a_refusal_leaves_a_line(client, lines):
    length = client.delete("/traits/X", status=401).headers["content-length"]
    assert lines() == [f'- "DELETE /traits/X" status: 401 len: {length} microversion: -']


def test_the_line_has_the_prefix_of_the_service(client, lines):
    client.get("/traits", headers=TOKEN, extra_environ={"SCRIPT_NAME": "/placement"})
    assert lines() == ['- "GET /placement/traits" status: 200 len: 2 microversion: -']


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/a%0Ab", "/a%0Ab"),
        ("/a%22%20status:%20200", "/a%22%20status:%20200"),
        ("/%C3%A9?%C3%A9=%0a", "/%C3%A9?%C3%A9=%0a"),
        ("/%FF", "/%FF"),
        ("/a%1B[2J", "/a%1B[2J"),
    ],
)
def test_a_path_cannot_break_or_fake_a_line(client, lines, path, logged):
    client.get(path, headers=TOKEN)
    assert lines() == [f'- "GET {logged}" status: 200 len: 2 microversion: -']


def test_the_record_belongs_to_its_own_caller(client, caplog):
    """oslo.log reads user and request id from the context of the thread."""
    caplog.set_level(logging.INFO, logger="placement.requestlog")
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            from oslo_context import context

            seen.append((context.get_current().user_id, context.get_current().request_id))

    handler = Handler()
    request_log.LOG.addHandler(handler)
    try:
        first = client.get("/traits", headers=TOKEN)
        second = client.get("/traits", status=401)
        third = client.get("/")
    finally:
        request_log.LOG.removeHandler(handler)
    ids = [answer.headers["x-openstack-request-id"] for answer in (first, second, third)]
    assert seen == [("ann", ids[0]), (None, ids[1]), (None, ids[2])]


def test_no_line_is_composed_while_the_log_is_off(client, monkeypatch):
    monkeypatch.setattr(request_log.LOG, "makeRecord", None)
    request_log.LOG.setLevel(logging.WARNING)
    try:
        client.get("/traits", headers=TOKEN, status=200)
    finally:
        request_log.LOG.setLevel(logging.NOTSET)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_VALUES = ("levelname", "message", "instance", "color", "request_id", "user_identity", "project", "version")
_FORMATS = ("%(asctime)s.%(msecs)03d", "%(isotime)s", "%(error_summary)s", "%(absent)s", "%%", "100 %")
FORMATS = st.lists(st.sampled_from((*_FORMATS, *(f"%({name})s" for name in (*_VALUES, "user_name"))))).map(
    " ".join
)
_IDENTITIES = ("%(user)s %(project)s", "%(absent)s %(user_id)s", "-")
_MESSAGES = [("a", ()), ("a %s", ("b",)), ("a %d", ("b",)), ("%s %s", ("b",))]
_ATTRIBUTES = ("context", "instance", "instance_uuid", "project", "user_name", "request_id", "exc_text")


@st.composite
def log_records(draw):
    """Records of any level, with arguments that fit their message or do not, and with values of their own."""
    message, arguments = draw(st.sampled_from(_MESSAGES))
    level = draw(st.sampled_from([logging.DEBUG, logging.INFO, logging.INFO, logging.WARNING]))
    record = logging.LogRecord("placement.x", level, "f.py", 1, message, arguments, None)
    record.created = draw(st.one_of(st.floats(0, 2e9), st.integers(0, 3)))
    vars(record).update(draw(st.dictionaries(st.sampled_from(_ATTRIBUTES), TEXTS | st.none(), max_size=2)))
    return record


@given(
    st.lists(log_records(), min_size=1, max_size=4),
    st.fixed_dictionaries(
        {
            "logging_context_format_string": FORMATS,
            "logging_default_format_string": FORMATS,
            "logging_user_identity_format": st.sampled_from(_IDENTITIES),
            "log_date_format": st.sampled_from(["%Y-%m-%d %H:%M:%S", "%H", ""]),
        }
    ),
    st.none() | st.dictionaries(st.sampled_from(["user_id", "project_id", "resource_uuid"]), TEXTS),
)
def test_lines_are_those_of_oslo_log(records, options, caller):
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([])
    for name, value in options.items():
        conf.set_override(name, value)
    theirs = ContextFormatter(project="placement", version="1", datefmt=conf.log_date_format, config=conf)
    ours = LineFormatter(theirs, conf)
    context = None if caller is None else RequestContext(overwrite=False, **caller)
    for record in records:
        if context is not None and "context" not in record.__dict__:
            record.context = context
        # oslo.log changes the record, so the other formatter comes first
        assert outcome(ours, record) == outcome(theirs, record)


def test_other_handlers_find_the_values_of_a_request_in_the_record():
    """The journal's handler and formatters without a context read them there."""
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([])
    formatter = LineFormatter(ContextFormatter(project="placement", version="1", config=conf), conf)
    record = logging.LogRecord("placement.x", logging.INFO, "f.py", 1, "a", (), None)
    record.context = RequestContext(overwrite=False, request_id=GIVEN, project_id="p")
    formatter.format(record)
    assert vars(record).items() >= {"request_id": GIVEN, "project_id": "p", "instance": ""}.items()


def outcome(formatter, record):
    """The line of a record, or the type of the error that its format causes."""
    try:
        return formatter.format(copy.copy(record))
    except Exception as error:
        return type(error)
