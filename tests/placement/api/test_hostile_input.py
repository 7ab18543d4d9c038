"""Tests of hostile requests: they get a clear 4xx in the API's error format, and change nothing."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import pytest
from werkzeug.test import TestResponse

from tests.databases import DatabaseServer
from tests.environments import is_pinned
from tests.placement.builders import OWNER
from tests.placement.running import Admin, application

RP = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"
CONSUMER = "67a82c9a-4a12-4b0a-8b5b-6e5d0b2a9b11"
PROVIDER = f"/resource_providers/{RP}"
JSON = "application/json"
LONG = "X" * 10_000
NUMBERS = ("2147483648", "9223372036854775808", "18446744073709551616", "1e30", "1e300", "-1", "-1e300")


@pytest.fixture(scope="module")
def service(database_server: DatabaseServer, database_template: str) -> Iterator[Admin]:
    """The service of all tests, with a provider that has inventories (one with an absurd ratio), and with a
    consumer.
    """
    url = database_server.clone(database_template)
    admin = Admin(application(url))
    inventories = {
        "VCPU": {"total": 2**31 - 1, "allocation_ratio": 3.4e38},
        "DISK_GB": {"total": 10},
    }
    for method, path, body in (
        ("POST", "/resource_providers", {"name": "host", "uuid": RP}),
        ("PUT", f"{PROVIDER}/inventories", {"resource_provider_generation": 0, "inventories": inventories}),
        ("PUT", f"/allocations/{CONSUMER}", claim_of({RP: {"resources": {"DISK_GB": 1}}}, generation=None)),
    ):
        answer = admin(method, path, json=body)
        assert answer.status_code < 300, answer.text
    yield admin
    database_server.drop_database(url)


def claim_of(allocations: Any, generation: Any = 1, **others: Any) -> dict[str, Any]:
    """The body of a claim in which any value may stand for the allocations."""
    return {"allocations": allocations, "consumer_generation": generation, **OWNER, **others}


def raw(body: bytes | str, content_type: str = JSON) -> dict[str, Any]:
    """A request with exactly these bytes as its body."""
    return {"data": body.encode() if isinstance(body, str) else body, "content_type": content_type}


def body(document: Any, **texts: str) -> dict[str, Any]:
    """A request with this JSON body. Each string `$NAME` in it is replaced by a text that no JSON library
    writes.
    """
    text = json.dumps(document)
    for name, value in texts.items():
        text = text.replace(f'"${name}"', value)
    return raw(text)


def wire(path: bytes | None = None, query: bytes | None = None, **variables: str) -> dict[str, Any]:
    """A request with these bytes in the path (as the server has decoded it) and in the query, and with these
    WSGI variables.
    """
    if path is not None:
        variables["PATH_INFO"] = path.decode("latin-1")
    if query is not None:
        variables["QUERY_STRING"] = query.decode("latin-1")
    return {"environ_overrides": variables}


def version(text: str) -> dict[str, Any]:
    return {"headers": {"OpenStack-API-Version": text}}


ROWS: list[tuple[str, str, str, dict[str, Any], int, str]] = [
    # bodies that are not JSON
    ("empty body", "POST", "/resource_providers", raw(b""), 400, "Malformed JSON"),
    ("blank body", "POST", "/resource_providers", raw(b"  \n"), 400, "Malformed JSON"),
    ("half a body", "POST", "/resource_providers", raw(b'{"name": "a'), 400, "Malformed JSON"),
    ("two bodies", "POST", "/resource_providers", raw(b'{"name": "a"}{"name": "b"}'), 400, "Malformed JSON"),
    ("Python's dictionary", "POST", "/resource_providers", raw(b"{'name': 'a'}"), 400, "Malformed JSON"),
    ("UTF-8 broken in body", "POST", "/resource_providers", raw(b'{"name": "\xff"}'), 400, "Malformed JSON"),
    ("UTF-16", "POST", "/resource_providers", raw('{"name": "a"}'.encode("utf-16")), 400, "Malformed JSON"),
    ("byte order mark", "POST", "/resource_providers",
     raw(b'\xef\xbb\xbf{"name": "a"}'), 400, "Malformed JSON"),
    ("NUL bytes", "POST", "/resource_providers", raw(b"\0" * 100), 400, "Malformed JSON"),
    ("gzip", "POST", "/resource_providers", raw(b"\x1f\x8b\x08\0\0"), 400, "Malformed JSON"),
    ("lone surrogate", "POST", "/resource_providers", raw(r'{"name": "a\ud800"}'), 400, "surrogate"),
    ("encoded surrogate", "POST", "/resource_providers", raw(b'{"name": "\xed\xa0\x80"}'), 400, "UTF-8"),
    ("arrays without end", "POST", "/resource_providers", raw(b"[" * 100_000), 400, "depth"),
    ("objects without end", "POST", "/reshaper", raw(b'{"a":' * 100_000), 400, " depth "),
    ("deep and closed", "POST", "/reshaper", raw(b"[" * 5000 + b"]" * 5000), 400, " depth "),
    # bodies of the wrong type
    *(
        (f"{name} for {method} {path}", method, path, raw(text), 400, "is not of type 'object'")
        for name, text in {
            "null": b"null", "true": b"true", "array": b"[]", "number": b"1e5", "string": b'"x"'
        }.items()
        for method, path in (
            ("POST", "/resource_providers"),
            ("PUT", PROVIDER),
            ("POST", f"{PROVIDER}/inventories"),
            ("PUT", f"{PROVIDER}/inventories"),
            ("PUT", f"{PROVIDER}/inventories/VCPU"),
            ("PUT", f"{PROVIDER}/aggregates"),
            ("PUT", f"{PROVIDER}/traits"),
            ("POST", "/resource_classes"),
            ("PUT", f"/allocations/{CONSUMER}"),
            ("POST", "/allocations"),
            ("POST", "/reshaper"),
        )
    ),
    *(
        (f"name {value!r}", "POST", "/resource_providers",
         body({"name": value}), 400, "is not of type 'string'")
        for value in (None, True, 1, 1.5, [], {}, ["a"])
    ),
    *(
        (f"uuid {value!r}", "POST", "/resource_providers", body({"name": "a", "uuid": value}), 400, "'uuid'")
        for value in (None, True, 1, [], {}, "", "x", LONG, RP[:-1], RP + "0")
    ),
    *(
        (f"total {value!r}", "PUT", f"{PROVIDER}/inventories/DISK_GB",
         body({"resource_provider_generation": 2, "total": value}), 400, "is not of type 'integer'")
        for value in (None, True, "10", 1.5, [], {})
    ),
    *(
        (f"traits {value!r}", "PUT", f"{PROVIDER}/traits",
         body({"resource_provider_generation": 2, "traits": value}), 400, "is not of type")
        for value in (None, True, 1, "CUSTOM_A", {}, [1], [None], [[]], [{}])
    ),
    *(
        (f"allocations {value!r}", "PUT", f"/allocations/{CONSUMER}",
         body(claim_of(value)), 400, "is not of type")
        for value in (None, True, 1, "x", [], {RP: None}, {RP: []}, {RP: {"resources": []}},
                      {RP: {"resources": {"VCPU": "1"}}}, {RP: {"resources": {"VCPU": True}}})
    ),
    # numbers
    *(
        (f"total {number}", "PUT", f"{PROVIDER}/inventories/DISK_GB",
         body({"resource_provider_generation": 2, "total": "$N"}, N=number), 400, "imum of")
        for number in NUMBERS
    ),
    *(
        (f"reserved {number}", "PUT", f"{PROVIDER}/inventories/DISK_GB",
         body({"resource_provider_generation": 2, "total": 1, "reserved": "$N"}, N=number), 400, "imum of")
        for number in NUMBERS
    ),
    *(
        (f"generation {number} of a provider", "PUT", f"{PROVIDER}/traits",
         body({"resource_provider_generation": "$N", "traits": []}, N=number), 409, "generation")
        for number in NUMBERS
    ),
    *(
        (f"generation {number} of a consumer", "PUT", f"/allocations/{CONSUMER}",
         body(claim_of({}, "$N"), N=number), 409, "consumer generation conflict")
        for number in NUMBERS
    ),
    *(
        (f"amount {number}", "PUT", f"/allocations/{CONSUMER}",
         body(claim_of({RP: {"resources": {"DISK_GB": "$N"}}}), N=number), status, text)
        for number in NUMBERS
        for status, text in [(400, "less than the minimum") if number[0] == "-" else (409, "DISK_GB")]
    ),
    ("amount 0", "PUT", f"/allocations/{CONSUMER}",
     body(claim_of({RP: {"resources": {"VCPU": 0}}})), 400, "minimum"),
    *(
        (f"{number} for a number", "POST", f"{PROVIDER}/inventories",
         body({"resource_class": "VGPU", "total": 1, "allocation_ratio": "$N"}, N=number),
          400, "Malformed JSON")
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "01", "+1", "1.", ".5")
    ),
    ("ratio beyond a float", "POST", f"{PROVIDER}/inventories",
     body({"resource_class": "VGPU", "total": 1, "allocation_ratio": 3.5e38}), 400, "maximum"),
    ("number of 100,000 digits", "POST", f"{PROVIDER}/inventories",
     body({"resource_class": "VGPU", "total": "$N"}, N="9" * 100_000), 400, "Malformed JSON"),
    # names
    ("name of 10,000 characters", "POST", "/resource_providers", body({"name": LONG}), 400, "is too long"),
    ("rename to 10,000 characters", "PUT", PROVIDER, body({"name": LONG}), 400, "is too long"),
    ("NUL in name", "POST", "/resource_providers",
     body({"name": "a\0"}), 400, "a NUL or a lone surrogate"),
    ("long class", "POST", "/resource_classes", body({"name": "CUSTOM_" + LONG}), 400, "is too long"),
    ("class with line feed", "POST", "/resource_classes",
     body({"name": "CUSTOM_A\n"}), 400, "does not match"),
    ("class in Arabic digits", "POST", "/resource_classes",
     body({"name": "CUSTOM_٣"}), 400, "does not match"),
    ("long class in path", "PUT", f"/resource_classes/CUSTOM_{LONG}", {}, 400, "is too long"),
    ("line feed in class in path", "PUT", "/", wire(b"/resource_classes/CUSTOM_A\n"), 400, "does not match"),
    ("NUL in class in path", "PUT", "/", wire(b"/resource_classes/CUSTOM_\0"), 400, "does not match"),
    ("long trait", "PUT", f"/traits/CUSTOM_{LONG}", {}, 400, "no longer than 255 characters"),
    ("line feed in trait", "PUT", "/", wire(b"/traits/CUSTOM_A\n"), 400, "The trait is invalid"),
    ("NUL in trait", "PUT", "/", wire(b"/traits/CUSTOM_\0"), 400, "The trait is invalid"),
    ("surrogate in trait", "PUT", "/", wire(b"/traits/CUSTOM_\xed\xa0\x80"), 400, "The trait is invalid"),
    ("header in trait", "PUT", "/",
     wire(b"/traits/CUSTOM_A\r\nSet-Cookie: a=b"), 400, "The trait is invalid"),
    ("class of an allocation with line feed", "PUT", f"/allocations/{CONSUMER}",
     body(claim_of({RP: {"resources": {"VCPU\n": 1}}})), 400, "does not match any of the regexes"),
    ("type with line feed", "PUT", f"/allocations/{CONSUMER}",
     body(claim_of({}, consumer_type="INSTANCE\n")), 400, "does not match"),
    ("suffix with line feed", "PUT", f"/allocations/{CONSUMER}",
     body(claim_of({}, mappings={"A\n": [RP]})), 400, "does not match any of the regexes"),
    ("long project", "PUT", f"/allocations/{CONSUMER}",
     body(claim_of({}) | {"project_id": LONG}), 400, "too long"),
    ("NUL in user", "PUT", f"/allocations/{CONSUMER}",
     body(claim_of({}) | {"user_id": "\0"}), 400, "a NUL or a lone surrogate"),
    ("same provider twice", "PUT", f"/allocations/{CONSUMER}",
     body(claim_of({RP: {"resources": {"VCPU": 1}}, RP.upper(): {"resources": {"VCPU": 1}}})),
      400, "same object"),
    ("same aggregate twice", "PUT", f"{PROVIDER}/aggregates",
     body({"resource_provider_generation": 2, "aggregates": [RP, RP.upper()]}), 400, "non-unique"),
    # paths
    ("broken UTF-8 in path", "GET", "/", wire(b"/resource_providers/\xff\xfe"), 404, "No resource provider"),
    ("NUL in path", "GET", "/", wire(b"/resource_providers/\0"), 404, "No resource provider"),
    ("long path", "GET", f"/resource_providers/{LONG}", {}, 404, "No resource provider"),
    ("dots in path", "GET", "/", wire(b"/resource_providers/../../etc/passwd"), 404, "could not be found"),
    ("empty segment", "GET", "/", wire(b"/resource_providers//usages"), 404, "could not be found"),
    ("slash at the end", "GET", "/resource_providers/", {}, 404, "could not be found"),
    ("unknown path", "POST", "/resource_provider", raw(b"{}"), 404, "could not be found"),
    ("NUL in class of inventory", "DELETE", "/",
     wire(f"{PROVIDER}/inventories/\0".encode()), 404, "No inventory"),
    ("broken class of inventory", "GET", "/",
     wire(f"{PROVIDER}/inventories/".encode() + b"\xff"), 404, "No inv"),
    ("change of NUL", "PUT", "/", wire(f"{PROVIDER}/inventories/\0".encode())
     | body({"resource_provider_generation": 2, "total": 1}), 404, "No such resource class"),
    ("no trait of broken UTF-8", "DELETE", "/", wire(b"/traits/\xff"), 404, "No such trait"),
    ("no trait of NUL", "DELETE", "/", wire(b"/traits/\0"), 404, "No such trait"),
    ("no trait of 10,000 characters", "GET", f"/traits/{LONG}", {}, 404, "No such trait"),
    ("no class of NUL", "DELETE", "/", wire(b"/resource_classes/\0"), 404, "No such resource class"),
    ("rename of NUL", "PUT", "/", wire(b"/resource_classes/\0") | body({"name": "CUSTOM_B"})
     | version("placement 1.6"), 404, "No such resource class"),
    ("consumer of NUL", "DELETE", "/", wire(b"/allocations/\0"), 404, "No allocations for consumer"),
    ("claim of NUL", "PUT", "/", wire(b"/allocations/\0") | body(claim_of({})), 400,
     "Malformed consumer_uuid"),
    ("claim of nobody", "PUT", f"/allocations/{LONG}", body(claim_of({})), 400, "Malformed consumer_uuid"),
    # queries
    ("broken UTF-8, raw", "GET", "/", wire(b"/resource_providers", b"name=\xff"), 400, "can't decode"),
    *(
        (f"broken UTF-8, {query}", "GET", f"{path}?{query}", {}, 400, "Invalid query string parameters: ")
        for path, query in (
            ("/resource_providers", "name=%ff%fe"), ("/resource_providers", "name=%ed%a0%80"),
            ("/traits", "name=in:%ff"), ("/usages", "project_id=%ff"),
            ("/allocation_candidates", "resources=VCPU:1&limit=%ff"),
        )
    ),
    ("broken UTF-8 in key, raw", "GET", "/", wire(b"/traits", b"\xff=1"), 400, "can't decode"),
    ("NUL in query", "GET", "/resource_providers?name=%00", {}, 400, "a NUL or a lone surrogate"),
    ("NUL in key", "GET", "/resource_providers?%00=1", {}, 400, "unexpected"),
    ("NUL in project", "GET", "/usages?project_id=%00", {}, 400, "a NUL or a lone surrogate"),
    ("long project in query", "GET", f"/usages?project_id={LONG}", {}, 400, "is too long"),
    ("empty project", "GET", "/usages?project_id=", {}, 400, "should be non-empty"),
    ("type with line feed in query", "GET", "/usages?project_id=p&consumer_type=A%0A",
     {}, 400, "does not match"),
    ("second UUID is none", "GET", f"/resource_providers?uuid={RP}&uuid=x", {}, 400, "'uuid'"),
    ("first UUID is none", "GET", f"/resource_providers?uuid=x&uuid={RP}", {}, 400, "'uuid'"),
    ("10,000 keys", "GET", "/", wire(b"/resource_providers", b"&".join(b"k%d=" % i for i in range(10_000))),
     400, "unexpected"),
    ("last of 10,000 aggregates is none", "GET", "/",
     wire(b"/resource_providers", f"member_of={RP}&".encode() * 10_000 + b"member_of=x"), 400, "valid UUID"),
    ("trait that is long", "GET", f"/resource_providers?required={LONG}", {}, 400, "No such trait"),
    ("traits without end", "GET", "/resource_providers?required=" + "A," * 5000, {}, 400, "empty trait"),
    ("name of traits without form", "GET", "/traits?name=%20", {}, 400, "Badly formatted name"),
    ("associated with both", "GET", "/traits?associated=maybe", {}, 400, "associated"),
    *(
        (f"resources {text[:20]!r}", "GET", "/", wire(path, b"resources=" + text.encode()), 400, expected)
        for path in (b"/resource_providers", b"/allocation_candidates")
        for text, expected in (
            ("", "Badly formed resources"), (":", "positive integer"), ("VCPU", "Badly formed resources"),
            ("VCPU:", "positive integer"), ("VCPU:1:1", "Badly formed resources"), ("VCPU:0", "amount >= 1"),
            ("VCPU:-1", "amount >= 1"), ("VCPU:1.5", "positive integer"), ("VCPU:1e3", "positive integer"),
            ("VCPU:NaN", "positive integer"), ("VCPU:" + "9" * 5000, "positive integer"),
            ("VCPU%00:1", "resource"), ("%f0%9f%98%80:1", "No such resource class"), (",", "Badly formed"),
        )
    ),
    ("limit 0", "GET", "/allocation_candidates?resources=VCPU:1&limit=0", {}, 400, "does not match"),
    ("limit with line feed", "GET", "/allocation_candidates?resources=VCPU:1&limit=1%0A",
     {}, 400, "does not match"),
    ("limit in Arabic", "GET", "/allocation_candidates?resources=VCPU:1&limit=%d9%a3",
     {}, 400, "does not match"),
    ("suffix of 65", "GET", f"/allocation_candidates?resources{'a' * 65}=VCPU:1", {}, 400, "does not match"),
    ("suffix with line feed", "GET", "/allocation_candidates?resources_A%0A=VCPU:1",
     {}, 400, "does not match"),
    ("isolate what is none", "GET", "/allocation_candidates?resources=VCPU:1&group_policy=x",
     {}, 400, "one of"),
    ("subtree of nobody", "GET", "/allocation_candidates?resources=VCPU:1&same_subtree=_X",
     {}, 400, "suffixes"),
    ("1,000 groups, no policy", "GET", "/", wire(
        b"/allocation_candidates", b"&".join(b"resources%d=VCPU:1" % i for i in range(1000))
    ), 400, "group_policy"),
    # methods
    *(
        (f"{method} {path}", method, path, {}, 405, f"The method {method} is not allowed")
        for method in ("HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "QUERY", "LOOK")
        for path in ("/", "/resource_providers", PROVIDER, f"/allocations/{CONSUMER}", "/usages", "/reshaper")
    ),
    # media types
    *(
        (f"Content-Type {kind!r}", "POST", "/resource_providers",
         raw(b'{"name": "a"}', kind), 415, "not supported")
        for kind in ("text/plain", "text/json", "application/json/x", "application/x-json", "x" * 9000)
    ),
    ("no Content-Type", "POST", "/resource_providers",
     raw(b'{"name": "a"}', ""), 400, "content-type header required"),
    ("neither body nor Content-Type", "POST", "/reshaper", {}, 415, "not supported"),
    # lengths
    *(
        (f"Content-Length {length[:12]!r}", "POST", "/resource_providers",
         wire(b"/resource_providers", CONTENT_LENGTH=length, CONTENT_TYPE=JSON), status, text)
        for length, status, text in (
            ("x", 400, "content-length header must be an integer"),
            ("-1", 400, "content-length header must be an integer"),
            ("1.5", 400, "content-length header must be an integer"),
            ("\u00b2", 400, "content-length header must be an integer"),
            ("99999999999", 413, "exceeds the capacity limit"),
            ("9" * 50, 413, "exceeds the capacity limit"),
        )
    ),
    ("Content-Length of 5,000 digits, no type", "POST", "/",
     wire(b"/resource_providers", CONTENT_LENGTH="9" * 5000), 400, "content-type header required"),
    # what errors repeat
    *(
        (f"nested {depth} times, {path}", "POST", path,
         raw(f'{{"{name}":{"[" * depth}1{"]" * depth}}}'), 400, "JSON does not validate: ")
        for path, name in (
            ("/resource_providers", "name"), ("/reshaper", "inventories"), ("/ext/v1/claims", "claims"),
            ("/ext/v1/trees", "resource_providers"), ("/ext/v1/capacity", "flavors"),
            ("/ext/v1/explanations", "query"), ("/ext/v1/reservations", "expires_in"),
            ("/ext/v1/availability", "duration"),
        )
        for depth in (400, 1000)
    ),
    # versions
    *(
        (f"version {text[:24]!r}", "GET", "/resource_classes", version(text), status, "version")
        for text, status in (
            ("placement 1", 400), ("placement 1.", 400), ("placement .1", 400),
            ("placement 1.1.1", 400), ("placement -1.0", 406), ("placement 1.-1", 406),
            ("placement 1.0x", 400), ("placement LATEST", 400), ("placement \u00b9.\u00b2", 400),
            ("placement 1.40", 406), ("placement 0.9", 406), ("placement 999999.9", 406),
            ("placement " + "9" * 9000 + ".1", 400), ("placement latest latest", 400),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "text"),
    [row[1:] for row in ROWS],
    ids=[row[0][:60] for row in ROWS],
)
def test_hostile_input_is_refused(service, untouched, method, path, options, status, text):
    answer = service(method, path, **options)
    assert answer.status_code == status, answer.text
    if method == "HEAD":
        assert answer.data == b""
    else:
        check_error(answer, status, text)
    assert state(service) == untouched


def check_error(answer: TestResponse, status: int, text: str) -> None:
    """Check that an error has the format of the API, and that its detail names the fault."""
    assert answer.mimetype == JSON
    (error,) = json.loads(answer.data)["errors"]
    assert text in error["detail"]
    assert error["status"] == status
    assert error["title"] == HTTPStatus(status).phrase
    assert error["request_id"] == answer.headers["x-openstack-request-id"]
    expected = {"status", "title", "detail", "request_id"}
    if answer.headers.get("OpenStack-API-Version") == "placement 1.39":  # none in an error about it
        expected.add("code")
        assert error["code"].startswith("placement.")
    if status == HTTPStatus.NOT_ACCEPTABLE:
        expected |= {"min_version", "max_version"}
    assert error.keys() == expected
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        assert answer.headers["Allow"]


@pytest.fixture(scope="module")
def untouched(service: Admin) -> list[Any]:
    """The state of the service before the requests of a test, which must not change it."""
    return state(service)


def state(service: Admin) -> list[Any]:
    """The state that clients can see. The service has to answer all requests for it."""
    answers = [
        service("GET", path)
        for path in (
            "/resource_providers",
            f"{PROVIDER}/inventories",
            f"{PROVIDER}/aggregates",
            f"{PROVIDER}/traits",
            f"{PROVIDER}/allocations",
            "/resource_classes",
            "/traits?name=startswith:CUSTOM_",
            "/allocation_candidates?resources=DISK_GB:1",
        )
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    return [answer.json for answer in answers]


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/ext/v1/explanations", {"query": "x" * 300_000}),
        ("/ext/v1/explanations", {"query": ["x" * 300_000]}),
        ("/ext/v1/explanations", {"x" * 300_000: 1}),
        ("/ext/v1/claims", {f"unknown {number}": 1 for number in range(20_000)}),
        ("/ext/v1/claims", {"claims": [{"order": {"x" * 300_000: 1}}]}),
        ("/resource_providers", {"name": "x" * 300_000}),
    ],
    ids=range(6),
)
def test_an_error_repeats_no_more_than_the_beginning(service, path, document):
    answer = service("POST", path, json=document)
    assert (answer.status_code, len(answer.data) < 4_000) == (400, True)


def test_capacities_beyond_all_numbers_are_shown_and_used_as_the_largest(service):
    answer = service("GET", "/allocation_candidates?resources=VCPU:2147483647")
    (summary,) = answer.json["provider_summaries"].values()
    assert summary["resources"]["VCPU"] == {"capacity": 2**53, "used": 0}
    assert len(answer.json["allocation_requests"]) == 1


def test_capacities_below_all_numbers_are_shown_and_give_nothing(service):
    """Only a reshape accepts such capacities, as in OpenStack Placement."""
    other = str(uuid4())
    assert service("POST", "/resource_providers", json={"name": other, "uuid": other}).status_code == 200
    inventories = {"PCPU": {"total": 1, "allocation_ratio": -1.7e308}, "MEMORY_MB": {"total": 1}}
    described = {other: {"resource_provider_generation": 0, "inventories": inventories}}
    answer = service("POST", "/reshaper", json={"inventories": described, "allocations": {}})
    assert answer.status_code == 204
    shown = service("GET", "/allocation_candidates?resources=MEMORY_MB:1").json["provider_summaries"][other]
    assert shown["resources"]["PCPU"] == {"capacity": -(2**53), "used": 0}
    assert service("GET", "/allocation_candidates?resources=PCPU:1").json["allocation_requests"] == []
    assert service("DELETE", f"/resource_providers/{other}").status_code == 204


@pytest.mark.parametrize("number", ["2147483648", "99999999999999999999999999", "9" * 4000])
def test_no_provider_has_more_than_the_largest_amount(service, number):
    answer = service("GET", f"/allocation_candidates?resources=VCPU:{number}")
    assert (answer.status_code, answer.json["allocation_requests"]) == (200, [])
    answer = service("GET", f"/resource_providers?resources=VCPU:{number}")
    assert (answer.status_code, answer.json["resource_providers"]) == (200, [])


@pytest.mark.parametrize(
    "name", ["😀" * 200, "\n", "a\r\nSet-Cookie: a=b", "\u202e", "'; DROP TABLE traits; --", "%00"]
)
def test_any_text_of_200_characters_is_a_name(service, name):
    made = service("POST", "/resource_providers", json={"name": name})
    assert made.status_code == 200
    assert made.json["name"] == name
    found = service("GET", "/resource_providers", query_string={"name": name})
    assert found.json["resource_providers"] == [made.json]
    assert service("DELETE", f"/resource_providers/{made.json['uuid']}").status_code == 204


@pytest.mark.parametrize("project", ["😀" * 255, "%", "a b&c=d", "\x7f\x01"])
def test_any_text_of_255_characters_is_a_project(service, project):
    consumer = "c8e96ef0-6d1e-4f0c-8a23-0e0f4f4f0a22"
    document = claim_of({RP: {"resources": {"DISK_GB": 1}}}, None) | {"project_id": project}
    assert service("PUT", f"/allocations/{consumer}", json=document).status_code == 204
    usages = service("GET", "/usages", query_string={"project_id": project}).json["usages"]
    assert usages == {"INSTANCE": {"consumer_count": 1, "DISK_GB": 1}}
    assert service("DELETE", f"/allocations/{consumer}").status_code == 204


@pytest.mark.parametrize("query", [f"name={LONG}", "name=a&name=b", "name=", "name", "&&&", ";"])
def test_odd_queries_are_answered(service, query):
    answer = service("GET", "/resource_providers", query_string=query)
    assert answer.status_code == (400 if query == ";" else 200)
    if "name" in query:  # an empty name filters nothing
        found = [each["name"] for each in answer.json["resource_providers"]]
        assert found == ([] if query.partition("=")[2] else ["host"])


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "garbage", ";;;,,,", "a/b," * 3000])
def test_a_client_that_does_not_accept_json_gets_plain_text(service, accept):
    answer = service("GET", "/resource_classes", headers={"Accept": accept})
    assert (answer.status_code, answer.mimetype) == (406, "text/plain")


def test_a_message_in_html_is_no_markup(service):
    answer = service("DELETE", "/traits/%3Cscript%3E", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "&lt;script&gt;" in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize("host", ['ex ample"<>', "[::1", "a\r\nSet-Cookie: a=b", "a/../b?x#y@z", "\xff", ""])
@pytest.mark.skipif(
    not is_pinned("Werkzeug"),
    reason="older versions of Werkzeug and its client refuse some hosts",
)
def test_a_hostile_host_does_not_get_into_the_location(service, host):
    answer = service("PUT", "/traits/CUSTOM_HOST", environ_overrides={"HTTP_HOST": host})
    assert answer.status_code == 201
    assert answer.headers["Location"] == "/traits/CUSTOM_HOST"
    assert "Set-Cookie" not in answer.headers
    assert service("DELETE", "/traits/CUSTOM_HOST").status_code == 204


def test_hostile_input_without_a_token_is_401(service):
    answer = service("GET", "/resource_providers", headers={"X-Auth-Token": ""})
    assert answer.status_code == 401
    (error,) = answer.json["errors"]
    assert error["title"] == "Unauthorized"
    assert error.keys() == {"status", "title", "detail", "request_id"}
