"""Tests of the console in a real browser: each page at each size, in light and dark colours, and by keyboard
only.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.browser import looking, needs_browser
from tests.placement.running import Admin
from tests.placement_extras.console import world
from tests.placement_extras.console.behind_keystone import AUTHTOKEN, service
from tests.placement_extras.console.browsing import check_everywhere, cut_off, focus, served
from tests.placement_extras.console.fake_identity import serving

pytestmark = [pytest.mark.slow, needs_browser]

PAGES = {
    "fleet": "/",
    "fleet-nothing": "/?name=nobody",
    "candidates": "/candidates?vcpus=4&ram=4096&disk=10&specs=hw:cpu_policy%3Ddedicated",
    "candidates-none": "/candidates?query=resources%3DPCPU:30,MEMORY_MB:2048%26required%3DCUSTOM_GOLD",
    "capacity": "/capacity?flavors=small%3Dresources%3DPCPU:4,MEMORY_MB:8192&without=compute-1&displaced=on",
    "names": "/names",
    "settings": "/settings",
    "neighbours": "/neighbours",
    "neighbours-nothing": "/neighbours?name=nobody&order=host",
    "consumer": f"/consumers/{world.uuid_of('guest-1')}",
    "project": "/project",
    "host": f"/providers/{world.uuid_of('compute-1')}",
    "host-disabled": f"/providers/{world.uuid_of('compute-9')}",
    "host-long": f"/providers/{world.uuid_of(world.LONG)}",
}


def has(page: Any, selector: str, count: int) -> None:
    """Wait until the page has ``count`` elements of this kind."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_count(count)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_accessible_at_every_size_and_in_all_colours(chromium: Any, base: str, name: str):
    with looking(chromium) as page:
        page.goto(base + PAGES[name])
        check_everywhere(page, name)


def test_the_calendar_is_whole_and_its_windows_are_opened_by_keyboard(
    chromium: Any, app: Any, base: str
) -> None:
    windows = world.book_windows(Admin(app))
    with looking(chromium, java_script_enabled=False) as page:
        for rows in ("hosts", "projects"):
            page.goto(f"{base}/calendar?resource_class=VCPU&rows={rows}")
            page.locator("summary").last.focus()
            page.keyboard.press("Enter")
            assert page.get_by_text(windows["window"]).is_visible()
    with looking(chromium) as page:
        for rows in ("aggregates", "projects"):
            page.goto(f"{base}/calendar?resource_class=VCPU")
            page.locator("[name=rows]").select_option(rows)
            page.wait_for_url(f"**rows={rows}*")
            has(page, ".calendar h2", 1 if rows == "aggregates" else 2)
            check_everywhere(page, f"calendar-{rows}")
        page.goto(f"{base}/calendar?resource_class=VCPU")
        check_everywhere(page, "calendar")
        page.locator("summary").last.press("Enter")
        page.get_by_role("link", name=windows["window"]).press("Enter")
        page.wait_for_selector("dd:text('pending')")
        check_everywhere(page, "window")


def test_a_page_looks_the_same_without_scripts(chromium: Any, base: str):
    shots = []
    for scripts in (True, False):
        with looking(chromium, java_script_enabled=scripts) as page:
            page.goto(base + "/")
            shots.append(page.screenshot())
    assert shots[0] == shots[1]


def test_a_visitor_signs_in_by_keyboard_and_out_again(chromium: Any, migrated_file: Path, tmp_path: Path):
    file = tmp_path / "placement.sqlite"
    shutil.copy(migrated_file, file)
    with (
        serving() as identity,
        served(service(AUTHTOKEN.format(url=identity.url), file, tmp_path)) as base,
        looking(chromium) as page,
    ):
        page.goto(base + "/?state=open")
        check_everywhere(page, "sign-in")
        page.locator("[name=username]").focus()
        page.keyboard.type("operator")
        for typed in ("", "operator-secret"):
            page.keyboard.press("Tab")
            if typed:
                page.keyboard.type(typed)
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/?state=open")
        check_everywhere(page, "fleet-empty")
        page.get_by_role("button", name="Sign out").press("Enter")
        page.wait_for_url("**/sign-in")
        page.goto(base + "/")
        assert page.url.endswith("/sign-in")


def test_after_the_end_of_a_session_a_filter_leads_to_the_form_to_sign_in(
    chromium: Any, migrated_file: Path, tmp_path: Path
):
    file = tmp_path / "placement.sqlite"
    shutil.copy(migrated_file, file)
    with (
        serving() as identity,
        served(service(AUTHTOKEN.format(url=identity.url), file, tmp_path)) as base,
        looking(chromium, but_of=["status of 401"]) as page,
    ):
        page.goto(base + "/")
        page.locator("[name=username]").fill("operator")
        page.locator("[name=password]").fill("operator-secret")
        page.locator("[name=password]").press("Enter")
        page.wait_for_selector("h1:text('Fleet')")
        # A filter that is changed before the scripts run applies by its button only.
        page.wait_for_load_state()
        page.context.clear_cookies()
        page.locator("[name=order]").select_option("used")
        page.wait_for_url("**/sign-in?next=*order%3Dused*")


def go_on_with_pages(route: Any) -> None:
    """Answer the browser's own requests for pages, and no requests of scripts."""
    if route.request.is_navigation_request():
        route.continue_()
    else:
        route.abort()


def test_an_answer_that_is_no_page_of_the_console_is_opened_as_a_page(chromium: Any, base: str):
    with looking(chromium, but_of=["htmx:", "net::ERR_FAILED"]) as page:
        page.goto(base + "/")
        page.route("**/console/?*", lambda route: route.fulfill(status=200, body="<h1>Elsewhere</h1>"))
        page.locator("[name=order]").select_option("used")
        page.wait_for_selector("body > h1:text('Elsewhere')")
        page.unroute("**/console/?*")
        page.goto(base + "/")
        page.route("**/console/?*", go_on_with_pages)
        page.locator("[name=order]").select_option("used")
        page.wait_for_url("**order=used*")
        has(page, "main", 1)


def test_the_fleet_is_filtered_and_a_host_opened_by_keyboard_alone(chromium: Any, base: str):
    with looking(chromium) as page:
        page.goto(base + "/")
        page.keyboard.press("Tab")
        assert focus(page) == "Skip to the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert focus(page) == "name"
        page.keyboard.type("compute-1")
        page.keyboard.press("Enter")
        page.wait_for_url("**name=compute-1*")
        has(page, "tbody th a", 2)
        assert page.locator("tbody th a").all_inner_texts() == ["compute-1", "compute-10"]
        reached = []
        while not reached or reached[-1] != "compute-1":
            page.keyboard.press("Tab")
            reached.append(focus(page))
            assert len(reached) < 40
        assert not [each for each in reached if each.endswith("(unseen)")]
        page.keyboard.press("Enter")
        page.wait_for_url("**/providers/**")
        assert page.locator("h1").inner_text() == "compute-1"


def test_a_chosen_filter_applies_at_once_and_the_form_stays_as_it_is(chromium: Any, base: str):
    with looking(chromium) as page:
        page.goto(base + "/")
        page.locator("[name=name]").fill("compute-1")
        page.keyboard.press("Enter")
        has(page, "tbody th a", 2)
        assert focus(page) == "name"
        page.locator("[name=state]").select_option("disabled")
        page.wait_for_selector("p.empty")
        assert page.locator("#lead").inner_text().startswith("0 hosts")
        check_everywhere(page, "fleet-filtered-at-once")
        kept = page.evaluate("() => [...Object.keys(sessionStorage), ...Object.keys(localStorage)]")
        assert kept == ["htmx-current-path-for-history"]  # and no page
        page.go_back()
        has(page, "tbody th a", 2)


def test_a_refusal_is_shown_where_filters_apply_at_once(chromium: Any, base: str):
    with looking(chromium, but_of=["status of 403"]) as page:
        page.goto(base + "/")
        refusal = '<main id="content"><h1>403 Forbidden</h1></main>'
        page.route("**/console/?*", lambda route: route.fulfill(status=403, body=refusal))
        page.locator("[name=order]").select_option("used")
        page.wait_for_selector("h1:text('403 Forbidden')")
        has(page, "main", 1)


def test_a_host_is_disabled_with_a_reason_and_enabled_by_keyboard_alone(chromium: Any, base: str):
    with looking(chromium) as page:
        page.goto(f"{base}/providers/{world.uuid_of('edge-1')}")
        page.locator("summary", has_text="Keep new guests away").press("Enter")
        page.locator("[name=reason]").focus()
        page.keyboard.type("Neue Speicherriegel, Ticket 4711")
        page.keyboard.press("Enter")
        page.wait_for_selector(".head .disabled")
        assert "Neue Speicherriegel, Ticket 4711" in page.locator(".scheduling").inner_text()
        check_everywhere(page, "host-disabled-here")
        page.get_by_role("button", name="Let new guests in").press("Enter")
        page.wait_for_selector(".head .open")


def test_everything_that_can_be_used_is_reached_by_tab_in_the_order_of_the_page(chromium: Any, base: str):
    with looking(chromium) as page:
        page.goto(base + PAGES["host"])
        usable = page.evaluate(
            "() => [...document.querySelectorAll('a[href], input, select, button, summary')]"
            ".filter(each => each.checkVisibility())"
            ".map(each => each.name || each.textContent.trim().slice(0, 60))"
        )
        reached = []
        for _ in usable:
            page.keyboard.press("Tab")
            reached.append(focus(page))
        assert reached == usable


def test_ten_thousand_characters_in_a_filter_break_nothing(chromium: Any, base: str):
    with looking(chromium) as page:
        page.goto(base + "/?name=" + "W" * 5000 + "&trait=" + "%3Cscript%3Ealert(1)%3C/script%3E" * 20)
        assert cut_off(page) == []
        assert page.locator("p.empty").count() == 1
