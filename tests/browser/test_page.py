"""The page at `/` in Chromium: what a person sees, in light and dark."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from agentspec.api.history import History
from agentspec.engines.base import Chunk, Receipt
from tests.api.conftest import LiveServer, live_server
from tests.browser.chromium import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI
    from playwright.sync_api import Browser, Page

    from agentspec.engines.base import GenerationRequest

SCREENSHOTS = os.environ.get("AGENTSPEC_SCREENSHOTS")
"""Folder for pictures of the page; none are made without it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(tmp_path) as server:
        yield server


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1100, "height": 900})
    page = context.new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    yield page
    context.close()


def picture(page: Page, name: str) -> None:
    if SCREENSHOTS:
        scheme = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
        page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}-{scheme}.png"), full_page=True)


def edit_receipt(scale: int = 1, warnings: tuple[str, ...] = ()) -> Receipt:
    accepted = {"repository": 30, "edit": 52 * scale, "request": 14, "prediction": 5, "format": 3}
    drafted = {name: count * 3 // 2 for name, count in accepted.items()} | {"syntax": 9}
    tokens = sum(accepted.values()) + 14
    return Receipt(420, 396, tokens, 14, drafted, accepted, 0.11, 0.02, 0.84, 0.003, warnings=warnings)


def edit_script(request: GenerationRequest) -> list[Chunk]:
    warnings = ("no index yet",) if request.sampling.max_tokens == 7 else ()
    return [Chunk(0, "done", (1,)), Chunk(0, finish_reason="stop", receipt=edit_receipt(1, warnings))]


def an_hour_of_work(app: FastAPI) -> None:
    """Give the server a past."""
    now = [0.0]
    history = History(lambda: now[0])
    for minute in range(58):
        now[0] = time.time() - 60 * (58 - minute)
        for part in range((minute * 7) % 5):
            history.add("stop", edit_receipt(part))
    history._clock = time.time
    history._choices.clear()
    app.state.services.metrics.history = history


def contrast(page: Page, selector: str) -> float:
    """WCAG's contrast of an element's text against the page."""
    return page.evaluate(
        """(selector) => {
          const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
          const luminance = (text) => parse(text).map((value) => {
            const part = value / 255;
            return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
          }).reduce((total, value, index) => total + value * [0.2126, 0.7152, 0.0722][index], 0);
          const [a, b] = [luminance(getComputedStyle(document.querySelector(selector)).color),
                          luminance(getComputedStyle(document.body).backgroundColor)].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05);
        }""",
        selector,
    )


def test_empty(page: Page, server: LiveServer) -> None:
    page.goto(server.url)
    page.wait_for_selector("#status[data-state=ready]")
    for name in ("chart", "repositories", "receipts"):
        assert page.is_visible(f"#{name}-empty")
    assert not page.is_visible("#error")
    assert not page.is_visible("#key")
    picture(page, "empty")
    assert page.errors == []


def test_full(page: Page, tmp_path: Path) -> None:
    with live_server(tmp_path, an_hour_of_work) as server:
        server.engine.script = edit_script
        server.indexer.go.clear()
        with httpx.Client(base_url=server.url) as client:
            for limit in (40, 7, 40):
                client.post("/v1/completions", json={"prompt": "x", "max_tokens": limit}).raise_for_status()
            for name in ("project", "another-project"):
                (tmp_path / name).mkdir()
                client.post("/v1/repositories", json={"path": str(tmp_path / name)}).raise_for_status()
        look_at_everything(page, server)
        server.indexer.go.set()


def look_at_everything(page: Page, server: LiveServer) -> None:
    page.goto(server.url)
    page.wait_for_selector("#receipts tbody tr")
    assert "scripted-model" in page.inner_text("#model")
    assert page.locator("#receipts tbody tr").count() == 3
    assert page.locator("#receipts td.warned").count() == 1
    assert page.locator("#repositories tbody tr").count() == 2
    assert page.locator("#chart rect.edit").count() > 10
    assert page.locator("#repositories progress").count() >= 1
    sources = page.locator("#sources tbody tr td:first-child").all_inner_texts()
    assert sources[0].strip() == "edit"
    assert sources[-1].strip() == "the model itself"
    shares = [float(text.split()[0]) for text in page.locator("#sources td:nth-child(3)").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    for selector in ("#model", "h1", "#status", "td", "th", ".hint"):
        assert contrast(page, selector) >= 4.5, selector
    picture(page, "full")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, "narrow")
    assert page.errors == []


def test_it_stays_live(page: Page, server: LiveServer) -> None:
    page.goto(server.url)
    page.wait_for_selector("#receipts-empty:visible")
    httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 4}).raise_for_status()
    page.wait_for_selector("#receipts tbody tr")


def test_a_server_that_goes_away_is_said_and_what_was_shown_stays(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    with live_server(tmp_path) as server:
        page.goto(server.url)
        page.wait_for_selector("#status[data-state=ready]")
    page.wait_for_selector("#error:visible")
    assert page.is_visible("#content")
    page.close()


def test_a_key_is_asked_for_and_kept_for_the_tab_only(page: Page, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    with live_server(tmp_path, api_key_file=keys) as server:
        page.goto(server.url)
        page.wait_for_selector("#key:visible")
        assert not page.is_visible("#content")
        page.fill("#key-field", "wrong")
        page.click("#key button")
        page.wait_for_selector("#key-error:not(:empty)")  # waiting for a function may need eval, which the page forbids
        picture(page, "key")
        page.fill("#key-field", "sesame")
        page.press("#key-field", "Enter")
        page.wait_for_selector("#content:visible")
        assert not page.is_visible("#key")
        assert page.evaluate("localStorage.length") == 0
        assert "sesame" not in page.url


def test_what_a_repository_is_called_is_no_markup(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    with live_server(tmp_path) as server:
        httpx.post(f"{server.url}/v1/repositories", json={"path": str(folder)}).raise_for_status()
        page.goto(server.url)
        page.wait_for_selector("#repositories tbody tr")
        assert page.locator("#repositories img").count() == 0
        assert "<img" in page.inner_text("#repositories")
