"""The examples of finetune.py beside this file, as TRL takes them.

They are read and encoded as `workbench data` shows them, once per machine: `datasets` keeps them in
its cache, on disk.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import argparse
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from datasets import Dataset, Features, List, Value
from recipe_options import first_rank

from workbench import training_data
from workbench.errors import UsageError
from workbench.training_data import (
    Encoder,
    Example,
    RowError,
    check_objective,
    form_of_source,
    load_tokenizer,
    locate,
    read_examples,
    unused_note,
)

_TOKENS = {
    "sft": ("input_ids", "labels"),
    "dpo": ("prompt_ids", "chosen_ids", "rejected_ids"),
}
_VERSIONS = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
_NOT_LEARNED = -100  # what torch's cross entropy leaves out


def rows_of(
    data: str, state: str, model: str, template: str | None, objective: str, *, learn_all: bool
) -> Iterator[dict[str, Any]]:
    """Each row as the trainer takes it, or the sentence why it is skipped.

    Rows are made again when `state` changes (see `state_of`), else they come from the cache.
    """
    del state
    source = locate(data)
    form, _ = form_of_source(source)
    encoder = Encoder(load_tokenizer(model), form, template, learn_all=learn_all)
    for read in read_examples(source, form):
        row = dict[str, Any](row=read.row, problem=read.problem, unused="", begins=0)
        tokens: dict[str, list[int]] = {name: [] for name in _TOKENS[objective]}
        if read.example is not None:
            row["unused"] = "\n".join((*read.unused, *encoder.unused(read.example)))
            try:
                tokens = _tokens_of(encoder, read.example, objective)
                row["begins"] = _begin(tokens)
            except RowError as error:
                row["problem"] = str(error)
        yield row | tokens


def _tokens_of(encoder: Encoder, example: Example, objective: str) -> dict[str, list[int]]:
    """An example by the names of TRL's data collator."""
    if objective == "dpo":
        chosen, rejected = encoder.sequences(example)
        begin = chosen.learned.index(True)
        parts = chosen.ids[:begin], chosen.ids[begin:], rejected.ids[begin:]
    else:
        encoded = encoder.encode(example)
        both = zip(encoded.ids, encoded.learned, strict=True)
        parts = encoded.ids, [token if counts else _NOT_LEARNED for token, counts in both]
    return {name: list(part) for name, part in zip(_TOKENS[objective], parts, strict=True)}


def _begin(tokens: dict[str, list[int]]) -> int:
    """Which token is the first that is learned."""
    if "labels" not in tokens:
        return len(tokens["prompt_ids"])
    return next(at for at, token in enumerate(tokens["labels"]) if token != _NOT_LEARNED)


def examples(options: argparse.Namespace, arguments: Any) -> tuple[Dataset, Dataset | None]:
    """What is trained on, and what is held out. What is skipped is reported once, by rank 0."""
    source = locate(options.data)
    form, _ = form_of_source(source)
    check_objective(options.data, form, options.objective)
    columns = {name: Value("int64") for name in ("row", "begins")}
    columns |= {name: Value("string") for name in ("problem", "unused")}
    columns |= dict.fromkeys(_TOKENS[options.objective], List(Value("int64")))
    with arguments.main_process_first(desc="examples"):  # the others find them in the cache
        every = Dataset.from_generator(
            rows_of,
            features=Features(columns),
            gen_kwargs={
                "data": options.data,
                "state": state_of(source.files, load_tokenizer(options.model)),
                "model": options.model,
                "template": options.template,
                "objective": options.objective,
                "learn_all": options.learn == "all",
            },
        )
    problems = list(every["problem"])
    broken = [at for at, problem in enumerate(problems) if problem]
    if broken:
        first = [f"row {every[at]['row']}: {problems[at]}" for at in broken[:5]]
        text = f"{len(broken):,} of {len(problems):,} rows of {options.data} cannot be trained on"
        if options.strict or len(broken) == len(problems):
            raise UsageError(f"{text}: {'; '.join(first)}. Mend them, or leave --strict out")
        say(f"{text} and are skipped:", *first, sep="\n  ")
    usable = every.select([at for at, problem in enumerate(problems) if not problem])
    unused = Counter(name for row in usable["unused"] for name in row.split("\n") if name)
    for note in (*source.notes, *unused_note(unused)):
        say(note)
    usable = _fitting(usable, options.seq_len)
    trained = usable.remove_columns(["row", "problem", "unused", "begins"])
    if not options.eval_share:
        return trained, None
    held_out = _held_out(list(usable["row"]), options.eval_share, options.seed)
    if len(held_out) == len(usable):
        raise UsageError(
            f"--eval-share {options.eval_share} of {len(usable):,} examples leaves none to train "
            "on. Give more examples, or leave it out"
        )
    rest = [at for at in range(len(usable)) if at not in held_out]
    return trained.select(rest), trained.select(sorted(held_out))


def _held_out(rows: list[int], share: float, seed: int) -> set[int]:
    """Places of the examples that are held out, drawn by the numbers of their rows in the file.

    A run that is resumed after rows were added holds out the same ones, but for a few: others would
    have been trained on before.
    """

    def draw(at: int) -> bytes:
        return hashlib.sha256(f"{seed} {rows[at]}".encode()).digest()

    return set(sorted(range(len(rows)), key=draw)[: math.ceil(share * len(rows))])


def _fitting(usable: Dataset, seq_len: int) -> Dataset:
    """Without those of which nothing that is learned would be left; TRL drops them silently.

    Raises:
        UsageError: none is left.
    """
    begins = list(usable["begins"])
    fitting = [at for at, begin in enumerate(begins) if begin < seq_len]
    if not fitting:
        raise UsageError(
            f"Each example's prompt fills --seq-len {seq_len:,}, so nothing is left to learn: the "
            f"shortest has {min(begins):,} tokens. Give a longer one"
        )
    if len(fitting) < len(begins):
        left = len(begins) - len(fitting)
        say(f"left out, as the prompt fills --seq-len: {left:,} of {len(begins):,} examples")
    return usable.select(fitting)


def state_of(data: Iterable[Path], tokenizer: Any) -> str:
    """Of all that an encoded example follows from: its file, the tokenizer and the code.

    The tokenizer's own content counts, whatever folder or revision of a hub it is from.
    """
    code = [*Path(training_data.__file__).parent.glob("*.py"), Path(__file__)]
    about = {str(path.resolve()): path.stat() for path in (*data, *sorted(code))}
    files = {name: (seen.st_size, seen.st_mtime_ns) for name, seen in about.items()}
    made = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
    marks = tokenizer.special_tokens_map, tokenizer.all_special_tokens
    content = repr((made, marks, tokenizer.chat_template, sorted(tokenizer.get_added_vocab())))
    return str((files, hashlib.sha256(content.encode()).hexdigest(), _VERSIONS))


def say(*words: str, sep: str = " ") -> None:
    """By one rank for all."""
    if first_rank():
        print(*words, sep=sep, flush=True)
