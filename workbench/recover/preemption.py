"""Notices that the machine will be taken away: AWS, GCP, a file, or any URL, asked by a thread.

AWS tells two minutes ahead under ``spot/instance-action`` (404 until then; IMDSv2 wants a token
first), GCP thirty seconds ahead under ``instance/preempted``. On RunPod and Slurm the notice is a
SIGTERM; whoever gets it can leave a file. The requests go past any proxy: notices come from the
machine itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.errors import UsageError

AWS_BASE = "http://169.254.169.254"
GCP_BASE = "http://metadata.google.internal"
_TIMEOUT_SECONDS = 2.0  # for connecting and for each read; the whole body has twice that
_BODY_MAX_BYTES = 4096
_TOKEN_SECONDS = 21_600
_NO = {"", "false", "404", "0", "no", "none", "null", "{}", "[]"}
_UNREACHABLE = (OSError, http.client.HTTPException, ValueError)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A metadata server does not send anyone elsewhere."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        """Never."""


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


class Poller:
    """Asks one place every few seconds and calls `on_notice` once, with a sentence.

    Args:
        where: ``aws``, ``gcp``, a path (the notice is that it exists) or an http(s) URL (the notice
            is status 200 with a body that does not say no).
        on_notice: Called from the poller's thread.
        interval_seconds: Between two questions.
        base_url: Of the metadata server, instead of AWS' or GCP's own.

    Raises:
        UsageError: `where` is none of these.
    """

    def __init__(
        self,
        where: str,
        on_notice: Callable[[str], None],
        *,
        interval_seconds: float = 2.0,
        base_url: str | None = None,
    ) -> None:
        self.problem = ""  # why the latest question had no answer
        self._ask = question(where, base_url)
        self._where = where
        self._on_notice = on_notice
        self._interval = interval_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="preemption", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question under way is not waited for."""
        self._stopped.set()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            notice = None
            try:
                notice = self._ask()
                self.problem = ""
            except _UNREACHABLE as error:  # the machine trains on, whatever its provider answers
                self.problem = f"{self._where} did not answer: {error}"
            if notice and not self._stopped.is_set():
                with contextlib.suppress(Exception):
                    self._on_notice(notice)
                return
            self._stopped.wait(self._interval)


def question(where: str, base_url: str | None = None) -> Callable[[], str | None]:
    """What to call to learn whether there is a notice: a sentence, or None.

    The call raises OSError, ValueError or an HTTPException where there is no answer.

    Raises:
        UsageError: `where` is no place that is known.
    """
    if where == "aws":
        return _Aws(base_url or AWS_BASE).ask
    if where == "gcp":
        return lambda: _gcp(base_url or GCP_BASE)
    if where.startswith(("http://", "https://")) and _has_host(where):
        return lambda: _url(where)
    if "/" in where and "://" not in where and "\0" not in where:
        path = Path(where).expanduser()
        return lambda: (
            f"{path} is there: the machine will be taken away." if path.exists() else None
        )
    raise UsageError(
        f"preemption={where!r}: give aws, gcp, a path with a / (./preempted), or an http(s) URL."
    )


def _has_host(url: str) -> bool:
    try:
        return bool(urllib.parse.urlsplit(url).hostname)
    except ValueError:  # http://[
        return False


class _Aws:
    """Spot notices of EC2's metadata service, version 2: a token first, then the question."""

    def __init__(self, base: str) -> None:
        self._base = base.rstrip("/")
        self._token: str | None = None

    def ask(self) -> str | None:
        """The action and its time."""
        if self._token is None:
            status, token = _request(
                f"{self._base}/latest/api/token",
                {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)},
                method="PUT",
            )
            if status != 200 or not token.isprintable() or not token:
                raise ValueError(f"the token request had status {status}")
            self._token = token
        status, body = _request(
            f"{self._base}/latest/meta-data/spot/instance-action",
            {"X-aws-ec2-metadata-token": self._token},
        )
        if status == 404:
            return None
        if status != 200:
            self._token = None  # 401: it has expired
            raise ValueError(f"status {status}")
        notice: Any = json.loads(body)
        try:
            action, at = str(notice["action"]), str(notice.get("time"))[:40]
        except (TypeError, LookupError, AttributeError):
            action, at = "", ""
        if action not in {"terminate", "stop", "hibernate"}:
            raise ValueError(f"no spot notice: {body[:80]!r}")
        return f"AWS will {action} this spot instance at {at}."


def _gcp(base: str) -> str | None:
    place = f"{base.rstrip('/')}/computeMetadata/v1/instance/preempted"
    status, body = _request(place, {"Metadata-Flavor": "Google"})
    if status != 200:
        raise ValueError(f"status {status}")
    return "GCP is taking this preemptible machine away." if body.upper() == "TRUE" else None


def _url(place: str) -> str | None:
    status, body = _request(place, {})
    if status in {204, 404}:
        return None
    if status != 200:
        raise ValueError(f"status {status}")
    return None if body.lower() in _NO else f"{place} says: {body[:120]!r}."


def _request(place: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
    """Status and the beginning of the body, without blanks around it."""
    request = urllib.request.Request(place, headers=headers, method=method)  # noqa: S310 - http only, see question()
    try:
        with _opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
            return answer.status, _body(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def _body(answer: http.client.HTTPResponse) -> str:
    """At most a page of it, for a limited time: a server may drip."""
    deadline, body = time.monotonic() + 2 * _TIMEOUT_SECONDS, b""
    while len(body) < _BODY_MAX_BYTES and (part := answer.read1(_BODY_MAX_BYTES)):
        body += part
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
    return body.decode("utf-8", errors="replace").strip()
