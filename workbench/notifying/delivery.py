"""Sending through Apprise, and what its addresses look like to people."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from workbench.errors import UsageError
from workbench.notifying.messages import Message
from workbench.notifying.targets import Target, check_installed

_TYPES = {"error": "failure", "warning": "warning", "note": "info"}
_SECRET_PATHS = ("json", "xml", "form", "ntfy")
"""Services of which Apprise hides no path, and it is the secret: a webhook's, or a topic."""
_VISIBLE_CHARACTERS = 2  # of each part of such a path
_WEBHOOKS = {"https://": "jsons://", "http://": "json://"}  # Apprise's names for JSON by POST


def understood(url: str) -> str:
    """The address as Apprise takes it; a plain one gets JSON by POST. Raises UsageError."""
    check_installed()
    if _service(url) is not None:
        return url
    for plain, named in _WEBHOOKS.items():
        if url.startswith(plain) and _service(changed := named + url.removeprefix(plain)):
            return changed
    raise UsageError(
        "No service has an address of that form. Give the webhook of Slack or Discord as it was "
        "copied, https://ntfy.sh/TOPIC, mailtos://USER:PASSWORD@HOST?to=NAME@HOST, or any "
        "https:// address that takes JSON; Apprise's documentation lists over a hundred others."
    )


def masked_address(url: str) -> str:
    """The address without its secrets. Raises UsageError: Apprise, which knows them, is missing."""
    check_installed()
    service = _service(url)
    if service is None:
        return "not understood"
    address = str(service.url(privacy=True)).partition("?")[0]
    scheme, _, rest = address.partition("://")
    if scheme.removesuffix("s") not in _SECRET_PATHS:
        return address
    host, slash, path = rest.partition("/")
    if getattr(service, "mode", None) == "cloud":  # ntfy.sh itself: topics, and no host before
        host, slash, path = "", "", rest
    parts = [f"{part[:_VISIBLE_CHARACTERS]}..." if part else "" for part in path.split("/")]
    return f"{scheme}://{host}{slash}{'/'.join(parts)}"


def send(target: Target, message: Message) -> str | None:
    """Send one message now; None when the service took it, else why not, without the address.

    Raises:
        UsageError: Apprise is not installed.
    """
    check_installed()
    import apprise  # noqa: PLC0415  # slow to load, and not needed while nothing happens

    sender: Any = apprise.Apprise()
    if not sender.add(target.url):
        return "its address is not understood"
    with _captured_log() as messages:
        took = sender.notify(
            title=message.title,
            body=message.body,
            notify_type=apprise.NotifyType(_TYPES[message.severity]),
            body_format=apprise.NotifyFormat.TEXT,
        )
    if took:
        return None
    return (messages[-1] if messages else "the service did not take it").replace(
        target.url, "its address"
    )


@contextmanager
def _captured_log() -> Generator[list[str]]:
    """What Apprise logs in the meantime: the only place where it says why."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("apprise"), Keep(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def _service(url: str) -> Any:
    import apprise  # noqa: PLC0415  # as above

    with _captured_log():
        factory: Any = apprise.Apprise
        return factory.instantiate(url)
