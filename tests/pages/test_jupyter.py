"""The pages inside a real Jupyter server: behind its login, for its own frames alone."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupyter_server", reason="jupyter_server is not installed")

from tests.browser.lab import Lab
from tests.conftest import until
from tests.pages.test_live_runs import watched
from tests.widgets.sample_runs import SampleRun

pytestmark = pytest.mark.slow


class JupyterServer(Lab):
    """Without JupyterLab's page."""

    program = "jupyter_server"

    @staticmethod
    def options(home: Path) -> list[str]:
        """Arguments of the program: below an address of its own, as a hub gives one."""
        return ["--ServerApp.base_url=/user/ann/"]

    def _wait_ready(self, log: Path) -> None:
        self.url += "/user/ann"
        super()._wait_ready(log)


class Site:
    """A server with one run below its root, and how to ask it."""

    def __init__(self, folder: Path) -> None:
        self.server = JupyterServer(folder / "root", folder / "home")
        self.store = self.server.root / "runs"
        self.run = SampleRun(self.store, "one", log_lines=["a line"])
        self.run.write(50)

    @property
    def page(self) -> str:
        key = base64.urlsafe_b64encode(str(self.store).encode()).decode().rstrip("=")
        return f"/user/ann/workbench/stores/{key}"

    def ask(
        self, path: str, *, body: Any = None, token: bool = True, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent |= self.server.headers if token else {}
        try:
            method = "GET" if body is None else "POST"
            link.request(method, path, None if body is None else json.dumps(body), sent)
            answer = link.getresponse()
            return answer, answer.read()
        finally:
            link.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    one = Site(tmp_path_factory.mktemp("jupyter"))
    yield one
    one.server.close()


def test_nothing_is_told_without_the_login(site: Site) -> None:
    for path in ("/user/ann/workbench/live", f"{site.page}/", f"{site.page}/api/runs"):
        answer, body = site.ask(path, token=False)
        assert answer.status in {302, 403}, path
        assert b"one" not in body
    answer, _ = site.ask(f"{site.page}/api/runs/one/act", body={"type": "stop"}, token=False)
    assert answer.status == 403


def test_another_site_cannot_act_with_the_cookie_of_a_login(site: Site) -> None:
    answer, _ = site.ask(f"/user/ann/login?token={site.server.token}", token=False)
    cookies = "; ".join(
        text.partition(";")[0]
        for name, text in answer.getheaders()
        if name == "Set-Cookie" and "=" in text
    )
    live, body = site.ask("/user/ann/workbench/live", token=False, Cookie=cookies)
    assert live.status == 200, body  # the cookie is a login
    ask = f"{site.page}/api/runs/one/ask"
    assert site.ask(ask, body={"type": "runs"}, token=False, Cookie=cookies)[0].status == 403
    proof = re.search(r"_xsrf=([^;]+)", cookies)
    if proof is None:
        page, _ = site.ask(f"{site.page}/", token=False, Cookie=cookies)
        proof = re.search(r"_xsrf=([^;]+)", page.getheader("Set-Cookie") or "")
        assert proof is not None
        cookies += f"; _xsrf={proof[1]}"
    answer, body = site.ask(
        ask, body={"type": "runs", "id": 1}, token=False, Cookie=cookies, X_XSRFToken=proof[1]
    )
    assert (answer.status, json.loads(body)[0]["value"]) == (200, ["one"])


def test_the_page_has_its_own_address_and_only_jupyter_frames_it(site: Site) -> None:
    answer, body = site.ask(f"{site.page}/")
    policy = answer.getheader("Content-Security-Policy") or ""
    assert answer.status == 200
    assert "frame-ancestors 'self'" in policy
    assert "script-src 'self'" in policy
    addresses = re.findall(r'(?:src|href)="([^"]+)"', body.decode())
    assert len(addresses) >= 4
    for address in addresses:
        assert address.startswith(site.page)
        assert site.ask(address)[0].status == 200, address


def test_it_answers_as_workbench_ui_does(site: Site) -> None:
    rows, body = site.ask(f"{site.page}/api/runs")
    assert [row["run"] for row in json.loads(body)["rows"]] == ["one"]
    tag = rows.getheader("ETag") or ""
    assert site.ask(f"{site.page}/api/runs", If_None_Match=tag)[0].status == 304
    whole, log = site.ask(f"{site.page}/files/one/logs/rank-0.log")
    assert whole.status == 200
    assert b"a line" in log
    part, some = site.ask(f"{site.page}/files/one/logs/rank-0.log", Range="bytes=2-5")
    assert (part.status, some) == (206, log[2:6])
    beyond, _ = site.ask(f"{site.page}/files/one/logs/rank-0.log", Range="bytes=99999999-")
    assert beyond.status == 416
    assert "sandbox" in (whole.getheader("Content-Security-Policy") or "")
    assert site.ask(f"{site.page}/files/one/run.json")[0].status == 404
    assert site.ask(f"{site.page}/files/../../etc/passwd")[0].status == 404


def test_what_names_no_store_or_is_no_object_is_refused_in_words(site: Site) -> None:
    for key in ("AAAA", "x", base64.urlsafe_b64encode(b"relative").decode().rstrip("=")):
        answer, body = site.ask(f"/user/ann/workbench/stores/{key}/")
        assert answer.status == 404
        assert b"names no store" in body
    assert site.ask(f"{site.page}/api/runs/one/ask", body=["type"])[0].status == 400


def test_the_own_store_is_the_servers(site: Site) -> None:
    answer, body = site.ask("/user/ann/workbench/live")
    document = json.loads(body)
    assert answer.status == 200
    assert document["page"] == site.page
    assert {"runs", "ended"} < document.keys()

    def live() -> list[Any]:
        told = json.loads(site.ask("/user/ann/workbench/live")[1])["runs"]
        return [row for row in told if row["page"] == site.page]

    with watched(site.store / "one"):
        until(live, 60)
        (row,) = live()
    assert (row["run"], row["own"], row["is_trial"]) == ("one", True, False)
