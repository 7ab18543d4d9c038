"""Tests of functions that the blueprints of extensions run around their requests."""

import pytest
from flask import Blueprint, g
from werkzeug.test import Client

from placement import extensions
from placement.api.app import create_app


def make_blueprint(name: str) -> Blueprint:
    blueprint = Blueprint(name, __name__)
    blueprint.add_url_rule(f"/{name}", view_func=lambda: g.get("seen", "nothing"))
    return blueprint


@pytest.mark.parametrize("hooks", [(), ("before",), ("before", "after"), ("before", "error")])
def test_functions_of_a_blueprint_run_around_its_requests_alone(
    hooks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    blueprint = make_blueprint("lodge")
    if "before" in hooks:
        blueprint.before_request(lambda: setattr(g, "seen", "before"))
    if "after" in hooks:
        blueprint.after_request(lambda response: response.headers.add("X-Seen", "after") or response)
    if "error" in hooks:
        blueprint.before_request(lambda: 1 / 0)
        blueprint.register_error_handler(ZeroDivisionError, lambda error: ("handled", 418))
    registered = extensions.registered_objects
    monkeypatch.setattr(
        extensions,
        "registered_objects",
        lambda seam: (
            {"lodge": blueprint, "den": make_blueprint("den")} if seam == "blueprints" else registered(seam)
        ),
    )
    client = Client(create_app())
    answer, other = client.get("/lodge"), client.get("/den")
    assert answer.text == ("handled" if "error" in hooks else "before" if "before" in hooks else "nothing")
    assert answer.status_code == (418 if "error" in hooks else 200)
    assert answer.headers.get("X-Seen") == ("after" if "after" in hooks else None)
    assert (other.text, other.headers.get("X-Seen")) == ("nothing", None)
