"""The server of `workbench ui`, a real process: who may read, who may act, and what leaves it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.ui_server import UiServer
from tests.pages.applied import applied
from tests.widgets.sample_runs import SampleRun
from workbench.pages.server.access import Access, Request
from workbench.pages.server.peer import is_loopback

MARKUP = "<img src=x onerror=alert(1)>"


class Site:
    """A server over a store with one run, and how to ask it."""

    def __init__(self, store: Path, *options: str) -> None:
        self.store = store
        self.run = SampleRun(store, "one", name=MARKUP, log_lines=[MARKUP])
        self.run.write(50)
        self.server = UiServer(store, *options)

    def ask(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer, and its body; an address goes as it is given."""
        link = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            data = None if body is None else json.dumps(body).encode()
            more = {} if body is None else {"Content-Type": "application/json"}
            link.request(
                method, path, data, {**more, **{k.replace("_", "-"): v for k, v in headers.items()}}
            )
            answer = link.getresponse()
            return answer, answer.read()
        finally:
            link.close()

    def status(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> int:
        return self.ask(path, method, body, **headers)[0].status


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    one = Site(tmp_path_factory.mktemp("site") / "runs")
    yield one
    assert one.server.close() == 0  # Ctrl-C


def test_the_page_runs_only_its_own_scripts(site: Site) -> None:
    answer, body = site.ask("/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert site.server.token not in body.decode()
    assert "<img" not in body.decode()


def test_what_is_no_address_or_nested_too_deeply_is_refused(site: Site) -> None:
    assert site.status("http://[/", Host="localhost") == 400
    assert site.status("http://[::1/api/runs", "HEAD", Host="localhost") == 400
    deep: Any = 1
    for _ in range(700):
        deep = {"a": deep}
    asked = {"type": "view", "run": "one", "id": deep}
    assert site.status(f"/api/runs/{site.run.directory.name}/ask", "POST", asked) == 400


def test_static_files_are_kept_by_version_and_packed(site: Site) -> None:
    page = site.ask("/")[1].decode()
    path = next(one for one in page.split('"') if one.endswith("site.js"))
    answer, body = site.ask(path, Accept_Encoding="gzip")
    assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "immutable" in answer.headers["Cache-Control"]
    assert b"class Site" in gzip.decompress(body)
    assert b"class Site" in site.ask(path)[1]
    assert site.status(path.replace("site.js", "../site.js")) == 404


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/files/one/../../secret",
        "/files/one/..%2f..%2fsecret",
        "/files/..%2fone/view.json",
        "/files/%2e%2e/runs/one/view.json",
        "/files/one/logs/rank-0.log/../../run.json",
        "/files/one/run.json",
        "/files/one/logs/rank-0.log%00.html",
        "/files/on/view.json",
        "/files/last/view.json",
        "/static/x/%2e%2e%2fassets.py",
        "/static/x/..",
        "/api/runs/..",
        "/runs/one/view.json",
    ],
)
def test_no_path_leaves_the_store_or_reaches_what_is_not_shown(site: Site, path: str) -> None:
    (site.store.parent / "secret").write_text("secret")
    answer, body = site.ask(path)
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "application/json"
    assert "error" in json.loads(body)


def test_links_are_not_followed(site: Site) -> None:
    (site.store.parent / "secret").write_text("secret")
    logs = site.run.directory / "logs"
    (logs / "rank-7.log").symlink_to(site.store.parent / "secret")
    (site.store / "elsewhere").symlink_to(site.run.directory)
    os.mkfifo(logs / "rank-8.log")
    for path in ("/files/one/logs/rank-7.log", "/files/one/logs/rank-8.log"):
        assert site.status(path) == 404
    assert site.status("/files/elsewhere/view.json") == 404


def test_logs_come_in_parts_as_text(site: Site) -> None:
    whole = (site.run.directory / "logs" / "rank-0.log").read_bytes()
    answer, body = site.ask("/files/one/logs/rank-0.log")
    assert (answer.status, body) == (200, whole)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    for asked, first, last in (("0-9", 0, 10), ("-7", len(whole) - 7, len(whole)), ("5-", 5, None)):
        answer, body = site.ask("/files/one/logs/rank-0.log", Range=f"bytes={asked}")
        assert (answer.status, body) == (206, whole[first:last])
        assert answer.headers["Content-Range"].endswith(f"/{len(whole)}")
    beyond = f"bytes={len(whole)}-"
    assert site.status("/files/one/logs/rank-0.log", Range=beyond) == 416
    assert site.ask("/files/one/logs/rank-5.log", Range="bytes=-9")[1] == b""  # none yet
    assert site.status("/files/one/report.html") == 404


def test_views_come_whole_and_then_as_changes(site: Site) -> None:
    first = json.loads(site.ask("/files/one/view.json?since=")[1])
    site.run.write(51)
    second = json.loads(site.ask(f"/files/one/view.json?since={first['version']}")[1])
    assert second["base"] == first["version"]
    plain = json.loads(site.ask("/files/one/view.json")[1])
    assert applied(first["view"], second["changes"]) == plain
    assert plain["steps"] == 51
    same = json.loads(site.ask(f"/files/one/view.json?since={second['version']}")[1])
    assert same["changes"] == {}
    assert "view" in json.loads(site.ask("/files/one/view.json?since=other")[1])


def test_the_table_is_sent_once(site: Site) -> None:
    answer, body = site.ask("/api/runs")
    assert [row["name"] for row in json.loads(body)["rows"]] == [MARKUP]
    tag = answer.headers["ETag"]
    assert site.ask("/api/runs", If_None_Match=tag)[1] == b""
    assert site.status("/api/runs", If_None_Match=tag) == 304
    assert json.loads(site.ask("/api/runs/one")[1])["report"] is False


def test_questions_are_answered(site: Site) -> None:
    ask = "/api/runs/one/ask"
    (status,) = json.loads(site.ask(ask, "POST", {"type": "status"})[1])
    assert status["type"] == "status"
    (runs,) = json.loads(site.ask(ask, "POST", {"type": "runs", "id": "q"})[1])
    assert (runs["id"], runs["value"]) == ("q", ["one"])
    (lost,) = json.loads(site.ask(ask, "POST", {"type": "window", "id": 1, "first": []})[1])
    assert lost["value"] is None
    endless = {"type": "window", "first": float("inf"), "last": 3}
    assert json.loads(site.ask(ask, "POST", endless)[1])[0]["value"] is None
    assert site.status(ask, "POST", {"type": "stop"}) == 400


def test_acting_needs_the_token(site: Site) -> None:
    act, stop = "/api/runs/one/act", {"type": "stop"}
    token = f"token {site.server.token}"
    for headers in ({}, {"Authorization": "token x"}, {"Cookie": f"workbench-{site.server.port}="}):
        assert site.status(act, "POST", stop, **headers) == 403
    asked = site.run.directory / "control" / "stop"
    assert not asked.exists()
    refused = {
        "another site": {"Origin": "http://evil.example"},
        "another site, as browsers say": {"Sec-Fetch-Site": "cross-site"},
        "a form": {"Content-Type": "text/plain"},
        "a rebound name": {"Host": "evil.example"},
    }
    for why, headers in refused.items():
        assert site.status(act, "POST", stop, Authorization=token, **headers) >= 400, why
    assert not asked.exists()
    assert site.status(act, "POST", {"type": "delete"}, Authorization=token) == 400
    (said,) = json.loads(site.ask(act, "POST", {"type": "resume"}, Authorization=token)[1])
    assert said["bad"]
    assert "Not resumed" in said["text"]


def test_the_token_leaves_the_address_for_a_cookie_that_scripts_cannot_read(site: Site) -> None:
    answer, _ = site.ask(f"/?token={site.server.token}")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    given = cookie.partition(";")[0]
    page = site.ask("/", Cookie=given)[1].decode()
    assert '"refusal": ""' in page
    assert '"refusal": ""' not in site.ask("/?token=wrong")[1].decode()


def test_large_and_odd_bodies_are_refused(site: Site) -> None:
    ask = "/api/runs/one/ask"
    assert site.status(ask, "POST", {"type": "x" * 70_000}) == 413
    assert site.status(ask, "POST", ["a list"]) == 400
    assert site.status("/api/runs/one/ask", "DELETE") == 501


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Length": "\xb2"}, b"{}", 413),
        ({"Content-Length": "9" * 5000}, b"{}", 413),
        ({"Origin": "http://["}, b"{}", 403),
        ({}, b"[" * 50_000, 400),
        ({}, b'{"a":' * 10_000, 400),
        ({"Range": f"bytes={'9' * 5000}-"}, None, 206),
        ({"Range": f"bytes=-{'9' * 5000}"}, None, 206),
    ],
)
def test_what_no_browser_sends_gets_an_answer_too(
    site: Site, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    link = http.client.HTTPConnection("127.0.0.1", site.server.port, timeout=60)
    path = "/api/runs/one/ask" if body else "/files/one/logs/rank-0.log"
    more = {"Content-Type": "application/json"} if body else {}
    with contextlib.closing(link):
        link.request("POST" if body else "GET", path, body, {**more, **headers})
        with link.getresponse() as answer:
            assert answer.status == status


def test_a_proxy_may_name_another_host_than_the_browser_asked(site: Site) -> None:
    """As `ngrok --host-header=rewrite` and nginx without a proxy_set_header do."""
    ask, page = "/api/runs/one/ask", {"Origin": "https://pod-8787.example.net"}
    for says, status in (("same-origin", 200), ("same-site", 403), ("cross-site", 403)):
        assert site.status(ask, "POST", {"type": "status"}, Sec_Fetch_Site=says, **page) == status
    assert site.status(ask, "POST", {"type": "status"}, **page) == 403


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user")
def test_another_user_of_this_machine_reads_nothing(site: Site) -> None:
    code = (
        "import sys, urllib.error, urllib.request\n"
        "try: urllib.request.urlopen(sys.argv[1])\n"
        "except urllib.error.HTTPError as error: print(error.code, error.read().decode())\n"
    )
    for address in (site.server.url, f"{site.server.url}?token={site.server.token}"):
        done = subprocess.run(
            ["/usr/bin/env", "-i", "/usr/bin/python3", "-c", code, address],
            user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.startswith("403 "), (done.stdout, done.stderr)
        assert "the user who started" in done.stdout


def test_any_other_address_needs_the_token_for_reading_too(tmp_path: Path) -> None:
    one = Site(tmp_path / "runs", "--host", "0.0.0.0", "--allow-name", "pod-8787.example.net")
    token = f"token {one.server.token}"
    try:
        for path in ("/", "/api/runs", "/files/one/view.json", "/static/x/site.js"):
            assert one.status(path) == 403
            assert one.status(path, Authorization=token) == 200
        assert one.status("/", Authorization=token, Host="pod-8787.example.net") == 200
        assert one.status("/", Authorization=token, Host="evil.example") == 403
    finally:
        assert one.server.close() == 0


def test_a_port_in_use_is_told(site: Site) -> None:
    command = ["-m", "workbench.cli", "ui", "--json", "--port", str(site.server.port)]
    done = subprocess.run(
        [sys.executable, *command, "--store", str(site.store)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--port 0" in json.loads(done.stdout)["error"]


def test_which_hosts_are_ours() -> None:
    access = Access(token="t", port=1, open_to_own=True, names=frozenset({"box"}))
    for host in (
        "localhost:1",
        "127.0.0.1",
        "[::1]:9",
        "10.0.0.7:1",
        "box",
        "BOX:1",
        "a.localhost",
    ):
        assert access.host_allowed(host), host
    for host in ("", "evil.example", "127.0.0.1.evil.example:1", "localhost.evil", "box/", "a@box"):
        assert not access.host_allowed(host), host


def test_who_reads() -> None:
    def refused(access: Access, own_user: object, **headers: str) -> bool:
        assert own_user in {True, False, None}
        asked = Request(headers=headers, query_token=None, own_user=own_user)  # type: ignore[arg-type]
        return access.refused(asked) != ""

    at_home = Access(token="t", port=1, open_to_own=True)
    outside = Access(token="t", port=1, open_to_own=False)
    token = {"authorization": "token t"}
    assert [refused(at_home, own) for own in (True, False, None)] == [False, True, True]
    assert [refused(at_home, own, **token) for own in (True, False, None)] == [False, True, False]
    assert [refused(outside, own) for own in (True, False, None)] == [True, True, True]
    assert [refused(outside, own, **token) for own in (True, False, None)] == [False, True, False]
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("10.1.2.3")


def test_the_base_install_is_enough() -> None:
    """No library of Jupyter, no plotly, no torch: without plotly.js the page has no charts."""
    code = (
        "import sys, tempfile\n"
        "for name in 'anywidget ipywidgets IPython traitlets tornado jupyter_core plotly numpy torch'.split():\n"
        "    sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from workbench.pages.server import http\n"
        "with tempfile.TemporaryDirectory() as store:\n"
        "    with http.PageServer(Path(store), '127.0.0.1', 0, token='t', names=[]) as server:\n"
        "        assert server.routes.get('/api/runs', {}, acts=False).data == b'{\"rows\":[],\"of\":0}'\n"
        "        page = server.routes.get('/', {}, acts=False).data.decode()\n"
        "assert '\"plotly\": null' in page, page\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
