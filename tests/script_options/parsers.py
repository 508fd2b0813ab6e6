"""Scripts with a parser each: what they are, and what is to be read of them."""

from __future__ import annotations

from dataclasses import dataclass, field

TRAINED = "open('trained', 'w').close()\n"
AP = "import argparse\np = argparse.ArgumentParser()\n"
END = f"args = p.parse_args()\n{TRAINED}"
HF = """from dataclasses import dataclass, field
from transformers import HfArgumentParser
@dataclass
class ModelArguments:
    model_name: str = field(metadata={"help": "which model"})
    lr: float = field(default=1e-3, metadata={"help": "peak rate"})
    bf16: bool = False
    shuffle: bool = True
    layers: list[int] = field(default_factory=lambda: [1, 2])
    never: int = field(default=3, init=False)
"""


@dataclass(frozen=True)
class Case:
    """One script, and the options by name: (kind, default, group or None)."""

    name: str
    source: str
    options: dict[str, tuple] = field(default_factory=dict)
    way: str = "source"
    run: bool = False
    note: str = ""
    files: dict[str, str] = field(default_factory=dict)
    more: dict[str, dict] = field(default_factory=dict)


def argparse_case(name: str, body: str, options: dict, **more) -> Case:
    return Case(name, AP + body + END, options, **more)


CASES = [
    argparse_case(
        "types",
        "p.add_argument('--lr', type=float, default=3e-4, help='peak rate')\n"
        "p.add_argument('-n', '--steps', type=int, default=10, help='optimizer steps')\n"
        "p.add_argument('--name')\np.add_argument('--out-dir', default='runs')\n",
        {"--lr": ("number", 3e-4), "--steps": ("integer", 10), "--name": ("text", None),
         "--out-dir": ("path", "runs")},
        more={"--steps": {"names": ("-n", "--steps"), "unit": "steps"}},
    ),
    argparse_case(
        "groups",
        "g = p.add_argument_group('model')\ng.add_argument('--depth', type=int)\n"
        "p.add_argument_group('data').add_argument('--batch', type=int, default=8)\n"
        "x = g.add_mutually_exclusive_group()\nx.add_argument('--fast', action='store_true')\n",
        {"--depth": ("integer", None), "--batch": ("integer", 8), "--fast": ("switch", False)},
        more={"--depth": {"group": "model"}, "--batch": {"group": "data"},
              "--fast": {"group": "model"}},
    ),
    argparse_case(
        "choices",
        "KINDS = ('a', 'b')\np.add_argument('--kind', choices=KINDS, default='a')\n"
        "p.add_argument('--size', type=int, choices=[1, 2])\n",
        {"--kind": ("text", "a"), "--size": ("integer", None)},
        more={"--kind": {"choices": ("a", "b")}, "--size": {"choices": ("1", "2")}},
    ),
    argparse_case(
        "nargs",
        "p.add_argument('--betas', nargs=2, type=float, default=[0.9, 0.95])\n"
        "p.add_argument('--files', nargs='+')\np.add_argument('--maybe', nargs='?')\n"
        "p.add_argument('--tag', action='append')\n",
        {"--betas": ("number", "0.9 0.95"), "--files": ("text", None), "--maybe": ("text", None),
         "--tag": ("text", None)},
        more={"--betas": {"least": 2, "most": 2}, "--files": {"least": 1, "most": None},
              "--maybe": {"least": 0, "most": 1}, "--tag": {"repeated": True}},
    ),
    argparse_case(
        "switches",
        "p.add_argument('--bf16', action='store_true')\n"
        "p.add_argument('--no-cache', action='store_false', dest='cache')\n"
        "p.add_argument('--compile', action=argparse.BooleanOptionalAction, default=True)\n",
        {"--bf16": ("switch", False), "--no-cache": ("switch", False), "--compile": ("switch", True)},
        more={"--compile": {"off": ("--no-compile",)}},
    ),
    argparse_case(
        "words",
        "p.add_argument('data')\np.add_argument('rest', nargs='*')\n"
        "p.add_argument('--seed', type=int, required=True)\n",
        {"data": ("text", None), "rest": ("text", None), "--seed": ("integer", None)},
        more={"data": {"required": True, "is_word": True}, "--seed": {"required": True}},
    ),
    argparse_case(
        "defaults from a constant and in the help",
        "LR = 0.5\np.add_argument('--lr', type=float, default=LR, help='rate (%(default)s), 50%%')\n",
        {"--lr": ("number", 0.5)},
        more={"--lr": {"help": "rate (0.5), 50%"}},
    ),
    argparse_case(
        "set_defaults",
        "p.add_argument('--lr', type=float)\np.set_defaults(lr=0.1)\n",
        {"--lr": ("number", 0.1)},
    ),
    Case(
        "in a function",
        "import argparse\ndef get():\n    parser = argparse.ArgumentParser()\n"
        "    add = parser.add_argument\n    add('--lr', type=float, default=1.0)\n"
        f"    return parser\ndef main():\n    get().parse_args()\n    {TRAINED}"
        "if __name__ == '__main__':\n    main()\n",
        {"--lr": ("number", 1.0)},
    ),
    Case(
        "in another module",
        f"from settings import parser\np = parser()\n{END}",
        {"--lr": ("number", 2.0)},
        files={
            "settings.py": "import argparse\ndef parser():\n    p = argparse.ArgumentParser()\n"
            "    p.add_argument('--lr', type=float, default=2.0)\n    return p\n"
            "if __name__ == '__main__':\n    argparse.ArgumentParser().add_argument('--own')\n"
        },
    ),
    Case(
        "in a package",
        f"from pack.cli import parser\np = parser()\n{END}",
        {"--depth": ("integer", 3)},
        files={
            "pack/__init__.py": "",
            "pack/cli.py": "import argparse\ndef parser():\n    p = argparse.ArgumentParser()\n"
            "    p.add_argument('--depth', type=int, default=3)\n    return p\n"
            "def unused(p):\n    p.add_argument('--never')\n",
        },
    ),
    argparse_case(
        "in a loop",
        "for name in ('--a', '--b'):\n    p.add_argument(name, type=int)\n",
        {"--a": ("integer", None), "--b": ("integer", None)},
        way="run", run=True,
    ),
    argparse_case(
        "under a condition",
        "import os\nif os.environ.get('HOME'):\n    p.add_argument('--home')\n",
        {"--home": ("text", None)},
        way="run", run=True,
    ),
    argparse_case(
        "of a library",
        "import json.tool\ndef add(parser): parser.add_argument('--x')\n"
        "getattr(argparse, 'ArgumentParser')\n__import__('functools').partial(add, p)()\n",
        {"--x": ("text", None)},
        way="run", run=True,
    ),
    Case(
        "parents",
        "import argparse\nq = argparse.ArgumentParser(add_help=False)\n"
        "q.add_argument('--seed', type=int, default=1)\n"
        "p = argparse.ArgumentParser(parents=[q])\np.add_argument('--lr', type=float)\n" + END,
        {"--seed": ("integer", 1), "--lr": ("number", None)},
    ),
    Case(
        "a first parser for a file",
        "import argparse\nq = argparse.ArgumentParser(add_help=False)\n"
        "q.add_argument('--config')\nknown, rest = q.parse_known_args()\n"
        "p = argparse.ArgumentParser()\nfor n in ['--lr']:\n    p.add_argument(n, type=float)\n"
        f"p.parse_args(rest)\n{TRAINED}",
        {"--config": ("text", None), "--lr": ("number", None)},
        way="run", run=True,
    ),
    Case(
        "two parsers",
        f"{AP}q = argparse.ArgumentParser()\nq.add_argument('--other')\n"
        f"p.add_argument('--lr', type=float)\n{END}",
        {"--lr": ("number", None)},
        way="run", run=True,
    ),
    argparse_case(
        "sub-commands",
        "s = p.add_subparsers()\na = s.add_parser('train')\na.add_argument('--lr')\n"
        "s.add_parser('eval')\n",
        {}, way="none", note="has sub-commands (eval, train)",
    ),
    Case(
        "dataclasses", HF + f"p = HfArgumentParser(ModelArguments)\np.parse_args_into_dataclasses()\n{TRAINED}",
        {"--model_name": ("text", None), "--lr": ("number", 1e-3), "--bf16": ("switch", False),
         "--shuffle": ("switch", True)},
        more={"--model_name": {"required": True, "group": "ModelArguments", "help": "which model"}},
    ),
    Case(
        "dataclasses, run",
        HF + "from extra import *\np = HfArgumentParser([ModelArguments, Extra])\n"
        f"p.parse_args_into_dataclasses()\n{TRAINED}",
        {"--model_name": ("text", None), "--bf16": ("switch", False), "--shuffle": ("switch", True),
         "--extra": ("integer", 4)},
        way="run", run=True,
        files={"extra.py": "from dataclasses import make_dataclass, field\n"
               "Extra = make_dataclass('Extra', [('extra', int, field(default=4))])\n"},
        more={"--extra": {"group": "Extra"}, "--lr": {"group": "ModelArguments"}},
    ),
    Case(
        "typer",
        "from typing import Annotated, Optional\nfrom pathlib import Path\nimport typer\n"
        "app = typer.Typer()\n@app.command()\n"
        "def main(data: Path, lr: float = 0.1, bf16: bool = False,\n"
        "  name: Annotated[Optional[str], typer.Option(help='of the run')] = None,\n"
        f"  steps: int = typer.Option(5, '-s', '--steps')):\n    {TRAINED}app()\n",
        {"data": ("path", None), "--lr": ("number", 0.1), "--bf16": ("switch", False),
         "--name": ("text", None), "--steps": ("integer", 5)},
        more={"--bf16": {"off": ("--no-bf16",)}, "--name": {"help": "of the run"},
              "--steps": {"names": ("-s", "--steps")}},
    ),
    Case(
        "typer.run",
        f"import typer\ndef main(lr: float = 0.1):\n    {TRAINED}typer.run(main)\n",
        {"--lr": ("number", 0.1)},
    ),
    Case(
        "typer with an Enum",
        "import enum, typer\nclass Kind(str, enum.Enum):\n    a = 'a'\n    b = 'b'\n"
        f"def main(kind: Kind = Kind.a, fast: bool = True):\n    {TRAINED}typer.run(main)\n",
        {"--kind": ("text", "a"), "--fast": ("switch", True)},
        way="run", run=True,
        more={"--kind": {"choices": ("a", "b")}, "--fast": {"off": ("--no-fast",)}},
    ),
    Case(
        "click",
        "import click\n@click.command()\n@click.option('--lr', type=float, default=0.1, help='rate')\n"
        "@click.option('--steps', default=5)\n@click.option('--bf16', is_flag=True)\n"
        "@click.option('--mix/--no-mix', default=True)\n@click.argument('data')\n"
        "@click.option('--kind', type=click.Choice(['a', 'b']))\n"
        f"@click.option('--tag', multiple=True)\ndef main(**given):\n    {TRAINED}main()\n",
        {"--lr": ("number", 0.1), "--steps": ("integer", 5), "--bf16": ("switch", False),
         "--mix": ("switch", True), "data": ("text", None), "--kind": ("text", None),
         "--tag": ("text", None)},
        more={"--kind": {"choices": ("a", "b")}, "--mix": {"off": ("--no-mix",)},
              "--tag": {"repeated": True}},
    ),
    Case(
        "click, run",
        "import click\nopts = {'default': 3}\n@click.command()\n@click.option('--n', **opts)\n"
        "@click.option('--data', type=click.Path())\n"
        f"@click.option('--on/--off', default=True)\ndef main(**given):\n    {TRAINED}main()\n",
        {"--n": ("integer", 3), "--data": ("path", None), "--on": ("switch", True)},
        way="run", run=True, more={"--on": {"off": ("--off",)}},
    ),
    Case(
        "click group",
        "import click\n@click.group()\ndef cli(): ...\n@cli.command()\ndef train(): ...\ncli()\n",
        {}, way="none", note="has sub-commands",
    ),
    Case(
        "click, a short spelling for off alone",
        "import click\n@click.command()\n@click.option('--mix/--no-mix', ' /-M', default=True)\n"
        f"def main(**given):\n    {TRAINED}main()\n",
        {"--mix": ("switch", True)}, more={"--mix": {"off": ("--no-mix", "-M")}},
    ),
    argparse_case(
        "actions of its own, and argparse's names of counts",
        "class Note(argparse.Action):\n    def __call__(self, *_): ...\n"
        "p.add_argument('--note', action=Note, nargs=0)\n"
        + "".join(f"p.add_argument('--number-{place}', type=int)\n" for place in range(12))
        + "p.add_argument('rest', nargs=argparse.REMAINDER)\n",
        {"--note": ("switch", False), "rest": ("text", None)},
        more={"rest": {"least": 0, "most": None}},
    ),
    argparse_case(
        "a long sum of texts",
        f"p.add_argument('--lr', type=float)\nTEXT = {' + '.join(['p.prog'] * 1500)}\n",
        {"--lr": ("number", None)},
    ),
    Case(
        "HfArgumentParser: spellings beside the name",
        "from dataclasses import dataclass, field\nfrom transformers import HfArgumentParser\n"
        "@dataclass\nclass Own:\n"
        "    learning_rate: float = field(default=0.1, metadata={'aliases': ['--lr', '-l']})\n"
        f"HfArgumentParser(Own).parse_args_into_dataclasses()\n{TRAINED}",
        {"--learning_rate": ("number", 0.1)},
        more={"--learning_rate": {
            "names": ("--learning_rate", "--learning-rate", "--lr", "-l")}},
    ),
    Case("no parser", TRAINED, {}, way="none", note="shows no parser"),
    Case("fire", f"import fire\nfire.Fire(print)\n{TRAINED}", {}, way="none", note="with fire"),
    Case("syntax error", "def (:\n", {}, way="none", note="cannot be read as Python"),
    Case(
        "prints and exits",
        "import sys\nif len(sys.argv) < 3:\n    print('usage: me DATA')\n    sys.exit(3)\n" + TRAINED,
        {}, way="none", run=True, note="ended (exit code 3)",
    ),
    Case(
        "fails before", "import sys\nraise ValueError('no data here')\n", {}, way="none", run=True,
        note="failed before it read its arguments: ValueError: no data here",
    ),
]  # fmt: skip
