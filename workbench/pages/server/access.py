"""Who may read and act through the server of ``workbench ui``.

- Over loopback: reading is open to processes of this user and root; another user's are refused.
  Where the kernel does not say whose a connection is, the token is needed.
- Acting (stop, resume, watch again, profile) needs the token, which the command prints.
- Bound to any other address, reading needs the token too.
- A request must name a host of ours (against DNS rebinding), and one that acts must come from our
  own page (against requests forged by another site).
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from workbench.pages.server.peer import is_loopback, peer_uid

WHY_READ_ONLY = (
    "This page only reads. To stop and resume runs, open the address with the token that "
    "workbench ui printed."
)
_ROOT = 0
_HOST = re.compile(r"\[(?P<six>[0-9a-fA-F:.%]+)\](:\d+)?|(?P<name>[^:\[\]/@\s]+)(:\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What access is decided by."""

    headers: Mapping[str, str]
    """Names in lower case."""
    query_token: str | None
    """The token in the address."""
    own_user: bool | None
    """Whether it comes over loopback from a process of this user, or root; None = not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rules of one server."""

    token: str
    """Lets its holder act; and read, where the server is bound to more than loopback."""
    port: int
    """Cookies are shared by all ports of a host: ours has it in its name."""
    open_to_own: bool
    """Whether this user's processes read without the token: bound to loopback alone."""
    names: frozenset[str] = field(default_factory=frozenset[str])
    """Names of this server beside localhost and numeric addresses, in lower case."""

    @property
    def cookie(self) -> str:
        """Name of the cookie that keeps the token."""
        return f"workbench-{self.port}"

    def host_allowed(self, host: str) -> bool:
        """Whether a Host header names us: rebinding needs a name, so any number is good."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["six"] or match["name"]).lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost") or name in self.names:
            return True
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True

    def same_site(self, headers: Mapping[str, str]) -> bool:
        """Whether a request that acts comes from our page: the browser says so.

        A browser that says nothing names the page's Origin: it is the host that is asked. A proxy
        may write another host there, so what the browser says counts more.
        """
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None:
            return site in {"same-origin", "none"}
        return origin is None or origin.partition("://")[2] == headers.get("host")

    def refused(self, request: Request) -> str:
        """Why it may not read; "" = it may."""
        if request.own_user is False:
            return "This address answers only to processes of the user who started workbench ui."
        if self.open_to_own and request.own_user:
            return ""
        if self.has_token(request):
            return ""
        return "Open the address with the token that workbench ui printed."

    def has_token(self, request: Request) -> bool:
        """Whether the token comes along: in the address, a header or our cookie."""
        candidates = [request.query_token or "", self._in_cookie(request.headers)]
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        candidates.append(text.strip() if kind.lower() in {"token", "bearer"} else "")
        return any(
            hmac.compare_digest(token.encode(), self.token.encode())
            for token in candidates
            if token
        )

    def _in_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return cookie.value if cookie else ""


def own_user(connection: socket.socket) -> bool | None:
    """Whether a process of this user, or root, connected over loopback; None = not known."""
    try:
        if not is_loopback(str(connection.getpeername()[0])):
            return None
    except OSError:
        return None
    uid = peer_uid(connection)
    return None if uid is None else uid in {os.geteuid(), _ROOT}
