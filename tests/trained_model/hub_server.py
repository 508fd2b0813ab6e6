"""A hub in this process: the endpoints of the Hugging Face hub that an upload uses, over HTTP.

Formats as huggingface_hub sends and reads them (whoami-v2, repos/create, models/ID, preupload, LFS
batch of git-lfs's docs/api/batch.md, commit as lines of JSON). It checks what arrives: the token,
the SHA-256 of each large file, and the commit that a change builds on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "W" * 34
LARGE = (".safetensors",)


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """Its files and its newest commit."""

    private: bool = True
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=lambda: ["0" * 40])


@dataclass
class Hub:
    """What the server knows; `refuse` answers a path that matches with a code and words."""

    user: str = "ann"
    organisations: tuple[str, ...] = ("lab",)
    role: str = "write"
    repositories: dict[str, Repository] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    refuse: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Hub:  # noqa: PYI034 - Self is of Python 3.11
        hub = self

        class Handler(_Handler):
            state = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, code: int, document: Any, **headers: str) -> None:
        content = json.dumps(document).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _work(self) -> None:
        body, path = self._body(), self.path.partition("?")[0]
        self.state.requests.append(f"{self.command} {path}")
        for pattern, (code, words) in self.state.refuse.items():
            if re.search(pattern, f"{self.command} {path}"):
                return self._answer(code, {"error": words}, X_Error_Message=words)
        if path.startswith("/stored/"):  # its address is signed: no token
            return self._store(path.removeprefix("/stored/"), body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid credentials in Authorization header"})
        for pattern, name in ROUTES:
            found = re.fullmatch(pattern, f"{self.command} {path}")
            if found:
                return getattr(self, name)(body, *found.groups())
        return self._answer(404, {"error": f"no route {path}"})

    do_GET = do_POST = do_PUT = _work  # noqa: N815 - http.server's names

    def _store(self, oid: str, body: bytes) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.state.stored[oid] = body
        self._answer(200, {})

    def _whoami(self, _: bytes) -> None:
        about = {"name": self.state.user, "type": "user", "fullname": self.state.user}
        about |= {"orgs": [{"name": one} for one in self.state.organisations]}
        self._answer(200, {**about, "auth": {"accessToken": {"role": self.state.role}}})

    def _info(self, _: bytes, name: str) -> None:
        repository = self.state.repositories.get(name)
        if repository is None:
            return self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        siblings = list[dict[str, Any]]()
        for path, content in repository.files.items():
            one = {"rfilename": path, "size": len(content), "blobId": git_name(content)}
            if path.endswith(LARGE):
                digest = hashlib.sha256(content).hexdigest()
                one["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 130}
            siblings.append(one)
        about = {"id": name, "modelId": name, "private": repository.private}
        return self._answer(
            200, {**about, "sha": repository.commits[-1], "siblings": siblings, "tags": []}
        )

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked.get('organization') or self.state.user}/{asked['name']}"
        if name in self.state.repositories:
            return self._answer(409, {"error": "You already created this model repo"})
        private = asked.get("visibility", "private" if asked.get("private") else "public")
        made = Repository(private=private != "public", files={".gitattributes": b"* lfs\n"})
        self.state.repositories[name] = made
        return self._answer(200, {"url": f"{self.state.url}/{name}", "name": name})

    def _valid(self, body: bytes) -> None:
        text = json.loads(body)["content"]
        if "license: [" in text:
            wrong = [{"message": '"license" must be a string'}]
            return self._answer(400, {"errors": wrong, "warnings": []})
        return self._answer(200, {"errors": [], "warnings": []})

    def _modes(self, body: bytes, name: str) -> None:
        files = list[dict[str, Any]]()
        for one in json.loads(body)["files"]:
            large = one["path"].endswith(LARGE)
            mode = {"uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            files.append({"path": one["path"], **mode})
        self._answer(200, {"files": files})

    def _batch(self, body: bytes, name: str) -> None:
        objects = list[dict[str, Any]]()
        for one in json.loads(body)["objects"]:
            where = {"upload": {"href": f"{self.state.url}/stored/{one['oid']}"}}
            there = one["oid"] in self.state.stored
            objects.append(one if there else {**one, "actions": where})
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, body: bytes, name: str) -> None:
        repository = self.state.repositories[name]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                parent = value.get("parentCommit")
                if parent is not None and parent != repository.commits[-1]:
                    return self._answer(412, {"error": "A commit has happened since"})
            elif line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.state.stored[value["oid"]]
        repository.commits.append(hashlib.sha1(body).hexdigest())
        url = f"{self.state.url}/{name}/commit/{repository.commits[-1]}"
        return self._answer(200, {"commitUrl": url, "commitOid": repository.commits[-1]})


ROUTES = (
    (r"GET /api/whoami-v2", "_whoami"),
    (r"GET /api/models/([\w.-]+/[\w.-]+)", "_info"),
    (r"POST /api/repos/create", "_create"),
    (r"POST /api/validate-yaml", "_valid"),
    (r"POST /api/models/([\w.-]+/[\w.-]+)/preupload/main", "_modes"),
    (r"POST /([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", "_batch"),
    (r"POST /api/models/([\w.-]+/[\w.-]+)/commit/main", "_commit"),
)
