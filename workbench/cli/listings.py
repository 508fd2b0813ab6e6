"""``workbench models`` and ``workbench gpus``: what the catalog knows, doubts marked."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from workbench.cli.memory import plain_console, show
from workbench.cli.tables import JsonOption, print_json
from workbench.describe import Accelerator
from workbench.describe.catalog import PublishedModel, every_published, gpus
from workbench.units import format_bytes, format_count

DOUBT = "?"


def models_command(*, as_json: JsonOption = False) -> None:
    """List the model shapes of the catalog."""
    models = every_published()
    if as_json:
        print_json([_model_document(model) for model in models])
        return
    table = _table("model", "parameters", "layers", "hidden", "kind", right=(1, 2, 3))
    for entry in models:
        shape = entry.model
        kind = f"{shape.kind}, {shape.experts} experts" if shape.experts else shape.kind
        sizes = (format_count(shape.parameters), str(shape.layers), str(shape.hidden))
        table.add_row(entry.id, *sizes, kind)
    show(plain_console(), table)


def gpus_command(*, as_json: JsonOption = False) -> None:
    """List the accelerators of the catalog; cells marked ? are unverified."""
    accelerators = gpus()
    if as_json:
        print_json([_gpu_document(accelerator) for accelerator in accelerators])
        return
    headers = ("gpu", "name", "memory", "GB/s", "bf16 TF", "link GB/s")
    table = _table(*headers, right=(2, 3, 4, 5), wrapped=1)
    for gpu in accelerators:
        table.add_row(
            gpu.id,
            gpu.name,
            format_bytes(gpu.memory_bytes) + _doubt(gpu, "memory_bytes"),
            _scaled(gpu, "memory_bytes_per_second", 1e9),
            _scaled(gpu, "bf16_flops", 1e12),
            _scaled(gpu, "link_bytes_per_second", 1e9),
        )
    console = plain_console()
    show(console, table)
    console.print(
        f"\n{DOUBT} = unverified: sources disagree, or there is only one. Rates are dense."
    )


def _table(*headers: str, right: tuple[int, ...], wrapped: int = -1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(headers):
        justify = "right" if index in right else "left"
        table.add_column(
            name,
            justify=justify,
            no_wrap=index != wrapped,
            overflow="fold",
            style="bold" * (index == 0),
        )
    return table


def _doubt(gpu: Accelerator, field: str) -> str:
    return DOUBT if field in gpu.unverified else " "


def _scaled(gpu: Accelerator, field: str, unit: float) -> str:
    value: float | None = getattr(gpu, field)
    text = "n/a" if value is None else f"{value / unit:,.4g}"
    return text + _doubt(gpu, field)


def _model_document(entry: PublishedModel) -> dict[str, Any]:
    shape = entry.model
    return {
        "id": entry.id,
        "name": shape.name,
        "parameters": shape.parameters,
        "stated_parameters": entry.stated_parameters,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.key_value_heads,
        "vocab": shape.vocab,
        "experts": shape.experts,
        "kind": shape.kind,
        "aliases": list(entry.aliases),
        "source": entry.source,
        "date": entry.date,
        "notes": entry.notes,
    }


def _gpu_document(gpu: Accelerator) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(gpu, name) for name in Accelerator.__slots__}
    return plain | {"unverified": sorted(gpu.unverified), "aliases": list(gpu.aliases)}
