"""A price catalogue in the layout that gpuhunt reads, on disk or behind a local HTTP server."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gpuhunt import AcceleratorVendor, CatalogItem
from gpuhunt._internal import storage

VERSION = "20261120-7"


def item(
    provider, name, price, gpu="H100", count=8, *, memory=80.0, region="here", spot=False, **more
):
    return CatalogItem(
        provider=provider, instance_name=name, location=region, price=price, cpu=192, memory=2048.0,
        gpu_vendor=AcceleratorVendor.NVIDIA, gpu_count=count, gpu_name=gpu, gpu_memory=memory,
        spot=spot, disk_size=100.0, **more,
    )  # fmt: skip


def publish(root: Path, provider: str, items, version: str = VERSION, extra_line: str = "") -> Path:
    """Write {provider}/version and {provider}/{version}/catalog.zip with the library's own writer."""
    folder = root / provider / version
    folder.mkdir(parents=True)
    (root / provider / "version").write_text(version + "\n")
    table = folder / f"{provider}.csv"
    storage.dump(items, str(table))
    with table.open("a") as file:
        file.write(extra_line)
    with zipfile.ZipFile(folder / "catalog.zip", "w") as archive:
        archive.write(table, f"{provider}.csv")
    table.unlink()
    return folder


@contextlib.contextmanager
def serving(root: Path, broken: dict[str, int | str]) -> Iterator[str]:
    """The folder over HTTP. `broken`: provider -> a status to answer, "hang" or "drip"."""
    ended = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args) -> None:
            super().__init__(*args, directory=str(root))

        def do_GET(self) -> None:
            how = broken.get(self.path.split("/")[1])
            if how == "hang":
                ended.wait(30)
            elif how == "drip":  # bytes keep coming: no socket time limit ever strikes
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    while not ended.wait(0.2):
                        self.wfile.write(b"2")
            elif isinstance(how, int):
                self.send_error(how)
            else:
                super().do_GET()

        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def timed(call):
    start = time.monotonic()
    return call(), time.monotonic() - start
