"""Starts the leaky training as a client would, in a network namespace of its own if it can."""

import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path

import workbench as wb


def raise_loopback() -> None:
    """A new network namespace has its loopback down, and nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh", b"lo", 0x1 | 0x40)
        fcntl.ioctl(handle, 0x8914, request)  # SIOCSIFFLAGS: up, running


if __name__ == "__main__":
    script, store, go, tokens, apart = sys.argv[1:]
    if apart == "apart":
        raise_loopback()
    secrets = json.loads(Path(tokens).read_text())
    environment = {"MY_SERVICE_PASSWORD": secrets.pop("MY_SERVICE_PASSWORD")}
    os.environ.update(secrets)
    run = wb.launch(
        script,
        [
            go,
            ",".join([*secrets, *environment]),
            *("--hub_token", secrets["HF_TOKEN"]),
            f"wandb.api_key={secrets['WANDB_API_KEY']}",
            f"--url=https://user:{secrets['SLACK_TOKEN']}@example.org",
            secrets["OPENAI_API_KEY"],
        ],
        cpu=True,
        processes=2,
        store=store,
        environment=environment,
    )
    print(run.directory, flush=True)
