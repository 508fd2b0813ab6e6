"""The Hugging Face hub, through its own library: what is there, and an upload in one commit.

The token is the user's: HF_TOKEN, or the file of `hf auth login`. It is read by the library, sent
to the hub alone and hidden in whatever is said.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from workbench.errors import HostError, UsageError
from workbench.store import secrets
from workbench.store.room import is_full
from workbench.trained_model.hub import own_content

Say = Callable[[dict[str, Any]], None]
_UNAUTHORISED, _TOO_LARGE, _FAILING = 401, 413, 500  # codes of HTTP
_CHANGED = ("{it} has changed since it was looked at", "the same command again")
_MEANINGS = {
    _UNAUTHORISED: (
        "The hub refuses the token: it is wrong, expired or revoked",
        "hf auth login with {token}",
    ),
    403: (
        "The token may not write to {it}",
        "{token} that may write there, or a repository of your own",
    ),
    409: _CHANGED,
    412: _CHANGED,
    _TOO_LARGE: (
        "The hub has no room for {it}",
        "delete what you no longer need there, or export less: --dtype bf16 or --adapter",
    ),
    429: ("The hub asks to wait: too many requests", "the same command again, in an hour"),
    _FAILING: (
        "The hub fails",
        "the same command again, later; what has arrived is not sent again",
    ),
}
"""By the answer's code: what it means, and what to do next."""
_NO_ROOM = ("storage", "quota", "payment")  # words of the hub's answer where an account is full


def look(request: Mapping[str, Any], say: Say) -> None:
    """Whose token it is, and what the repository has; nothing is changed.

    Ends with user, organisations, url, exists, private, head (its newest commit) and files: path,
    bytes, large (kept outside git) and hash (SHA-256 of a large one, git's of another).
    """
    repository = request["repository"]
    with _one_sentence(repository):
        api = _api()
        about = api.whoami()
        role = about.get("auth", {}).get("accessToken", {}).get("role")
        if role == "read":
            raise UsageError(
                f"The token of {about['name']} may only read. Next: {_new_token()} that may write."
            )
        seen = {
            "user": about["name"],
            "organisations": [organisation["name"] for organisation in about.get("orgs", [])],
            "url": f"{constants.ENDPOINT}/{repository}",
            "exists": True,
        }
        try:
            info: Any = api.repo_info(repository, files_metadata=True)
        except RepositoryNotFoundError:
            seen |= {"exists": False, "private": True, "head": None, "files": []}
        else:
            files = [_file(sibling) for sibling in info.siblings or ()]
            seen |= {"private": bool(info.private), "head": info.sha, "files": files}
    say({"end": True, **seen})


def upload(request: Mapping[str, Any], say: Say) -> None:
    """Send the files that differ, then commit all at once; ends with the commit."""
    repository, folder = request["repository"], Path(request["folder"])
    with _one_sentence(repository):
        api = _api()
        if request["create"]:
            api.create_repo(repository, private=not request["public"])
        additions = [_addition(folder, path, repository) for path in request["files"]]
        total = sum(addition.upload_info.size for addition in additions) or 1
        done = 0
        for addition in additions:
            say({"progress": done / total, "text": f"uploading {addition.path_in_repo}"})
            api.preupload_lfs_files(repository, [addition], free_memory=False)
            done += addition.upload_info.size
        say({"progress": 1.0, "text": "committing"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the card's header; errors in it are raised
            commit = api.create_commit(
                repository,
                additions,
                commit_message=request["message"],
                parent_commit=request["head"],
            )
    say({"end": True, "commit": commit.oid})


def _api() -> HfApi:
    token = get_token()
    if token is None:
        raise HostError(
            "No token of the Hugging Face hub is set on this host. Next: hf auth login, or set "
            f"HF_TOKEN to {_new_token()} that may write."
        )
    secrets.learn({}, [token])
    return HfApi(token=token, library_name="training-workbench")


def _new_token() -> str:
    return f"a token of {constants.ENDPOINT}/settings/tokens"


def _addition(folder: Path, path: str, repository: str) -> CommitOperationAdd:
    content = own_content(folder, path, repository)
    return CommitOperationAdd(path, str(folder / path) if content is None else content)


def _file(sibling: Any) -> dict[str, Any]:
    large = sibling.lfs is not None
    return {
        "path": sibling.rfilename,
        "bytes": sibling.lfs.size if large else sibling.size,
        "large": large,
        "hash": sibling.lfs.sha256 if large else sibling.blob_id,
    }


@contextmanager
def _one_sentence(repository: str) -> Generator[None]:
    """Errors of the hub and of the way to it, each with what to do next."""
    try:
        yield
    except (UsageError, HostError):
        raise
    except Exception as error:
        causes = list(_causes(error))
        message = _refused(causes, repository) or _unreachable(causes)
        if message is None:
            raise
        raise HostError(secrets.hide_known(message)) from error


def _refused(causes: list[BaseException], repository: str) -> str | None:
    """What the hub's answer means."""
    card = next((cause for cause in causes if "metadata in README.md" in str(cause)), None)
    if card is not None:
        words = " ".join(str(card).split())
        return f"The hub refuses the card: {words}. Next: mend README.md's header."
    answer = next((cause for cause in causes if isinstance(cause, HfHubHTTPError)), None)
    if answer is None:
        return None
    code = answer.response.status_code
    words = " ".join((answer.server_message or "").split())[:300].rstrip(".")
    if any(word in words.lower() for word in _NO_ROOM):
        code = _TOO_LARGE
    code = min(_FAILING, code)
    meaning, then = _MEANINGS.get(code, ("The hub refuses {it}", "another name with --push"))
    its = f" {words}." if words and code != _UNAUTHORISED else ""
    number, then = answer.response.status_code, then.format(token=_new_token())
    return f"{meaning.format(it=repository)} ({number}).{its} Next: {then}."


def _unreachable(causes: list[BaseException]) -> str | None:
    """What is wrong between here and the hub."""
    for cause in causes:
        if isinstance(cause, OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set, so nothing is sent. Next: unset it."
        if any(kind.__name__ == "TransportError" for kind in type(cause).__mro__):  # httpx, httpx2
            return (
                f"{constants.ENDPOINT} cannot be reached ({type(cause).__name__}). Next: look at "
                "the network, HF_ENDPOINT and proxies, then the same command again."
            )
        if is_full(cause):
            return (
                "The disk is full while it is uploaded. Next: free some space, also below "
                f"{constants.HF_HOME}, then the same command again."
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__
