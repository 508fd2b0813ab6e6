"""Numbers that need not be whole: their range stands in the declaration, and is checked there."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from workbench_widgets.cost.choice import CostChoice

import workbench as wb
import workbench.cli
from workbench.cli.cost_values import CostOptions
from workbench.cli.memory_values import MemoryOptions
from workbench.describe.option import DeclaredField, declared
from workbench.estimate.cost.plan import RunPlan
from workbench.planning import Limits
from workbench.planning.advice import RunFacts
from workbench.recover.policy import Recovery
from workbench.rehearsing.rehearse import Rehearsal
from workbench.verifying.verify import VerifyOptions

CLI = Path(workbench.cli.__file__).parent


def numbers() -> Iterator[tuple[str, DeclaredField]]:
    """Every declared number with decimals of what a command takes."""
    for module in pkgutil.iter_modules([str(CLI)], "workbench.cli."):
        if module.name.endswith("__main__"):
            continue
        for kind in vars(import_module(module.name)).values():
            if isinstance(kind, type) and is_dataclass(kind):
                for name, field in declared(kind).items():
                    if field.plain_type is float:
                        yield f"{kind.__name__}.{name}", field


def test_every_number_with_decimals_has_a_range() -> None:
    found = dict(numbers())
    assert len(found) > 30
    free = [name for name, one in found.items() if one.option.above is one.option.least is None]
    assert not free


def test_no_command_declares_such_a_number_beside_the_declarations() -> None:
    found = []
    for path in CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Subscript) else ""
            if text.startswith(("Annotated[float, ", "Annotated[float | None, ")):
                found += [f"{path.name}: {text}"] * ("typer." in text or "option(" in text)
    assert [text.partition(":")[0] for text in found] == ["comparing.py"]  # a loss is any number


@pytest.mark.parametrize(
    ("words", "python"),
    [
        ("memory --timeout -1", lambda: MemoryOptions(timeout=-1)),
        ("memory --headroom 1", lambda: MemoryOptions(headroom=1)),
        ("plan --deadline-hours 0", lambda: Limits(deadline_hours=0)),
        ("advise --loss nan", lambda: RunFacts(loss=float("nan"))),
        ("cost --idle-hours -0.5", lambda: RunPlan(steps=1, checkpoint_bytes=1, idle_hours=-0.5)),
        ("cost --idle-hours inf", lambda: CostOptions(idle_hours=float("inf"))),
        ("cost --idle-hours -2", lambda: CostChoice.from_options({"idle_hours": -2}).costed()),
        ("rehearse --speed 0", lambda: Rehearsal(speed=0)),
        ("launch gpt --max-hours 1e7 --dry-run", lambda: Recovery(max_hours=1e7)),
        ("verify s.py --timeout 0", lambda: VerifyOptions(timeout=0)),
        ("profile last --timeout 0", None),
        ("replay last --speed 0", None),
        ("demo --minutes 0", None),
        ("mcp --max-usd 0", None),
    ],
)
def test_python_command_and_form_refuse_in_one_sentence(
    words: str, python: Callable[[], Any] | None, command: Callable[..., Any]
) -> None:
    done = command(*words.split())
    assert done.code == 2, done.err
    name = words.split("--")[1].split(maxsplit=1)[0].replace("-", "_")
    assert done.err.startswith(f"error: {name} must be "), done.err
    if python is not None:
        with pytest.raises(wb.UsageError) as refused:
            python()
        assert done.err == f"error: {refused.value}\n"


def test_a_text_that_is_no_number_is_refused_with_the_range(command: Callable[..., Any]) -> None:
    done = command("memory", "--timeout", "soon")
    assert done.err == "error: timeout must be a number above 0, not 'soon'.\n"
