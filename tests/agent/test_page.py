"""The page that an agent serves, in a real browser: with a mouse, on a phone, and by keyboard alone."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from wasmckpt.agent.routes.page import FILES
from wasmckpt.api import JobSpec, Migrate
from wasmckpt.client import AgentClient, Where

from ..cli.conftest import wait_for
from ..migrate.programs import writes
from ..support.browser import browser
from ..support.ports import free_port
from .conftest import Serve, Served
from .guests import SLEEPS, TALK, TALK_OUTPUT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parents[2] / "wasmckpt" / "agent" / "page"
PATIENCE = 120_000.0
"""Milliseconds."""
MARKUP = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Browser, served: Served) -> Iterator[Page]:
    """Nothing of it may fail unheard, and nothing is asked of anybody but the agent."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE)
    opened, wrong = context.new_page(), list[str]()
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
    opened.on("request", lambda asked: None if asked.url.startswith(served.url) else wrong.append(asked.url))
    yield opened
    context.close()
    assert wrong == []


def sign_in(page: Page, served: Served) -> None:
    page.goto(served.url)
    page.fill("#token", served.token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#house:not([hidden])")


def new_job(served: Served, name: str, module: bytes, **spec: Any) -> str:
    client = served.client()
    client.create(JobSpec(module=client.upload(module).sha256, name=name, **spec))
    return name


def running(served: Served, name: str) -> None:
    wait_for(lambda: served.client().job(name).state.value not in ("pending", "starting"), "the job")


def open_job(page: Page, name: str) -> None:
    page.click(f"#rows button:text-is('{name}')")
    page.wait_for_selector(f"#job-title:text-is('{name}')")


def test_what_is_served(served: Served) -> None:
    """Without a token the page's files, and nothing else; nothing from elsewhere; a strict policy for all of it."""
    with httpx.Client(base_url=served.url, timeout=PATIENCE / 1000) as client:
        for path in ("/", *(f"/page/{name}" for name in FILES)):
            answer = client.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/page/../config.py", "/page/%2e%2e/config.py", "/page/absent.js", "/page/", "/page/index.html/x"):
            assert client.get(path).status_code in (404, 405), path
    assert {path.name for path in FOLDER.iterdir()} == FILES
    for file in FOLDER.iterdir():
        text = file.read_text()
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org", "https://b.example"}, file
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|style=|onclick=\"", text)


@pytest.mark.slow
def test_a_look_around(page: Page, served: Served) -> None:
    """A wrong token, the right one, the job, its output as it comes, an image and its picture."""
    new_job(served, "talks", TALK, args=["talk", MARKUP], labels={"app": "sim"})
    page.goto(served.url)
    page.fill("#token", "wckt_" + 43 * "x")
    page.click("#sign-in button")
    page.wait_for_selector("#said.bad")
    assert page.is_hidden("#house")
    sign_in(page, served)
    assert page.evaluate("sessionStorage.length") == 1
    assert served.token not in page.content()
    open_job(page, "talks")
    page.wait_for_function("text => document.getElementById('log').textContent === text", arg=TALK_OUTPUT.decode())
    page.wait_for_selector("#job-facts .state.exited")
    assert MARKUP in page.inner_text("#job-facts")
    assert page.title() == "wasmckpt agent"
    assert "processors" in page.inner_text("#node-facts")
    page.click("#leave")
    assert page.is_visible("#token")
    assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.slow
def test_buttons(page: Page, served: Served) -> None:
    new_job(served, "sleeps", SLEEPS)
    running(served, "sleeps")
    sign_in(page, served)
    open_job(page, "sleeps")
    page.click("[data-do=checkpoint]")
    page.wait_for_function(ORANGE)
    page.wait_for_function("() => document.getElementById('image-facts').textContent.includes('1 frame')")
    page.click("[data-do=hibernate]")
    page.wait_for_selector("#job-facts .state.hibernated")
    page.wait_for_selector("[data-do=migrate]:disabled")
    page.click("[data-do=wake]")
    page.wait_for_selector("#job-facts .state.running")
    page.click("[data-do=restart]")
    page.select_option("#restart-runtime", "wasm3")
    page.click("#ask-restart button[value=yes]")
    page.wait_for_function("() => document.getElementById('job-facts').textContent.includes('wasm3')")
    page.wait_for_selector("#job-facts .state.running")
    assert served.client().job("sleeps").runtime == "wasm3"
    page.click("[data-do=migrate]")  # nobody is there: it is told, and nothing has changed
    page.fill("#migrate-to", "http://127.0.0.1:1")
    page.fill("#migrate-runtime", "wasm3")
    page.click("#ask-migrate button[value=yes]")
    page.wait_for_function("() => document.getElementById('said').textContent.startsWith('migrate')")
    page.once("dialog", lambda dialog: dialog.accept())
    page.wait_for_selector("[data-do=stop]:enabled")
    page.click("[data-do=stop]")
    page.wait_for_selector("#job-facts .state.stopped")
    page.select_option("#states", "stopped")
    page.wait_for_selector("#rows button:text-is('sleeps')")


ORANGE = """() => {
    const canvas = document.querySelector("#memories canvas");
    const found = canvas?.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data ?? [];
    for (let n = 0; n < found.length; n += 4)
        if ([232, 89, 12, 255].every((value, at) => found[n + at] === value)) return true;
    return false;
}"""
"""Whether the picture shows a changed page."""


@pytest.mark.slow
def test_by_keyboard(page: Page, served: Served) -> None:
    """Sign in, choose a job, take an image, look at stderr: Tab, Enter and arrows, and one sees where one is."""
    new_job(served, "keys", SLEEPS)
    running(served, "keys")
    page.goto(served.url)
    page.keyboard.type(served.token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#rows button:text-is('keys')")
    _tab_to(page, "document.activeElement.textContent === 'keys'")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(outline.removesuffix("px")) >= 2
    page.keyboard.press("Enter")
    page.wait_for_selector("#job-title:text-is('keys')")
    page.wait_for_function("() => document.activeElement.id === 'job'")
    _tab_to(page, "document.activeElement.dataset.do === 'checkpoint'")
    page.keyboard.press("Enter")
    page.wait_for_selector("#memories canvas")
    _tab_to(page, "document.activeElement.id === 'tab-stdout'")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tab-stderr[aria-selected=true]")
    assert page.evaluate("document.activeElement.id") == "tab-stderr"
    assert page.evaluate("""[...document.querySelectorAll("button, input, select")].every((one) =>
        one.textContent.trim() || one.labels?.length || one.getAttribute("aria-label"))""")


def _tab_to(page: Page, condition: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(condition):
            return
    raise AssertionError(f"not reached by Tab: {condition}")


@pytest.mark.slow
def test_on_a_phone(page: Page, served: Served) -> None:
    """Nothing is wider than the screen, and what is to be touched is large enough."""
    page.set_viewport_size({"width": 360, "height": 740})
    new_job(served, "phone-" + 50 * "x", SLEEPS)
    running(served, "phone-" + 50 * "x")
    sign_in(page, served)
    open_job(page, "phone-" + 50 * "x")
    page.click("[data-do=checkpoint]")
    page.wait_for_selector("#memories canvas")
    page.click("summary")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    # In one look: the page draws itself anew while the job goes on.
    buttons = page.eval_on_selector_all("button:visible", """found => found.map(one => {
        const box = one.getBoundingClientRect(); return [one.innerText, box.height, box.right]; })""")
    assert len(buttons) >= 3
    assert [button for button in buttons if button[1] < 34 or button[2] > 360] == []


@pytest.mark.slow
def test_a_move_as_a_plot(page: Page, served: Served) -> None:
    """Its rounds are drawn from the events: pages as bars, the stop that they would lead to as a line."""
    name = new_job(served, "moves", SLEEPS, start=False)
    job = served.client().job(name).id
    rounds: list[dict[str, Any]] = [{"step": "round", "round": n, "pages": pages, "seconds": 0.5, "expected": expected}
              for n, (pages, expected) in enumerate([(65536, 2.0), (4000, 0.2), (900, 0.04)], 1)]
    steps = [{"step": "begins", "to": "http://b.example:7420", "runtime": "wamr"}, *rounds]
    with sqlite3.connect(served.state / "agent.sqlite", timeout=30) as db:
        db.executemany("INSERT INTO event (at, job, kind, text, data) VALUES (?, ?, 'migration', ?, ?)", [
            (time.time(), job, f"step {step['step']} {MARKUP}", json.dumps({"migration": "m1", **step}))
            for step in steps])
    sign_in(page, served)
    open_job(page, name)
    page.wait_for_selector("#moves svg")
    heights = page.evaluate("[...document.querySelectorAll('#moves rect')].map((one) => +one.getAttribute('height'))")
    assert len(heights) == 3
    assert heights[0] > 10 * heights[1] > 10 * heights[2] > 0
    assert "40 ms" in (page.get_attribute("#moves svg", "aria-label") or "")
    assert "to http://b.example:7420 wamr" in page.inner_text("#moves figcaption")
    assert page.is_visible("#moves button")  # it can be called off
    with sqlite3.connect(served.state / "agent.sqlite", timeout=30) as db:
        db.execute("INSERT INTO event (at, job, kind, text, data) VALUES (?, ?, 'migration', 'moved', ?)",
                   (time.time(), job, json.dumps({"migration": "m1", "step": "moved"})))
    served.client().delete(new_job(served, "wakes-the-followers", SLEEPS, start=False))
    page.wait_for_selector("#moves button", state="detached")


@pytest.mark.slow
def test_a_move_as_it_happens(page: Page, served: Served, serve: Serve) -> None:
    """To another agent: as many bars as it had rounds, and in the end it runs there."""
    other, client = serve(), served.client()
    name = new_job(served, "goes", writes(10_000))  # for minutes: longer than the move, on any machine
    running(served, name)
    sign_in(page, served)
    open_job(page, name)
    move = client.migrate(name, Migrate(to=other.url, runtime="wasm3", token=other.token, downtime=1.0,
                                        most_downtime=60.0))
    told = [event.data for event in client.follow_migration(name, move.id)]
    steps = [event["step"] for event in told]
    assert steps[-1] == "moved", told
    page.wait_for_function("count => document.querySelectorAll('#moves rect').length === count",
                           arg=steps.count("round"))
    page.wait_for_selector("#job-facts .state.moved")
    page.wait_for_selector("#moves button", state="detached")
    assert other.client().job(name).state.value in ("running", "exited")


@pytest.mark.slow
def test_the_path_of_the_readme(chromium: Browser, tmp_path: Path) -> None:
    """Two agents in three lines, and a program that is moved between them by clicks."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = re.findall(r"<!-- agents -->\n```console\n(.*?)```", text, re.DOTALL)
    first, second = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    lines = [line.removeprefix("$ ").replace("http://127.0.0.1:7420", first).replace("127.0.0.1:7420", first[7:])
             .replace("127.0.0.1:7421", second[7:]) for line in block.splitlines()]
    assert len(lines) == 3
    (tmp_path / "nbody.wasm").write_bytes(writes(100_000))
    (tmp_path / "wasmckpt").write_text(f'#!/bin/sh\nexec {sys.executable} -m wasmckpt.cli "$@"\n')
    (tmp_path / "wasmckpt").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    agents = [subprocess.Popen(["bash", "-c", "exec " + line.removesuffix("&")], cwd=tmp_path, env=environment)
              for line in lines[:2]]
    try:
        wait_for(lambda: all((tmp_path / name / "agent.json").exists() for name in "ab"), "the agents")
        subprocess.run(["bash", "-c", lines[2]], cwd=tmp_path, env=environment, check=True, timeout=PATIENCE / 1000)
        tokens = [(tmp_path / name / "token").read_text().strip() for name in "ab"]
        with chromium.new_context() as context:
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            page.goto(first)
            page.fill("#token", tokens[0])
            page.keyboard.press("Enter")
            open_job(page, "j1")
            page.wait_for_selector("#job-facts .state.running")
            with AgentClient(Where(first, tokens[0])) as client:
                for attempt in range(10):  # on a busy machine a stop may take longer than it may, and the job stays
                    page.click("[data-do=migrate]")
                    page.fill("#migrate-to", second)
                    page.fill("#migrate-runtime", "wasm3")
                    page.fill("#migrate-token", tokens[1])
                    page.click("#ask-migrate button[value=yes]")
                    wait_for(lambda n=attempt: [move.state for move in client.migrations("j1")][n:] in (  # type: ignore[misc]
                        ["kept"], ["telling"], ["moved"]), "the move's end")
                    if client.migrations("j1")[-1].state != "kept":
                        break
            page.wait_for_selector("#job-facts .state.moved")
            page.goto(second)
            page.fill("#token", tokens[1])
            page.keyboard.press("Enter")
            open_job(page, "j1")
            page.wait_for_selector("#job-facts .state.running")
            assert "wasm3" in page.inner_text("#job-facts")
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
