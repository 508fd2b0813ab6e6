"""What a logged name tells: its group and figure, which way is better, a validation loss or not."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAME_SCALE = 6  # times the smallest curve of a figure: more, and that one lies flat
_PREFIX = re.compile(r"^(eval|val|valid|validation|test|train|training)[_.:-](?=.)", re.IGNORECASE)
_VALIDATION = re.compile(
    r"^(eval|val|valid|validation|dev|test)[/_.:-](.+[/_.:-])?loss$", re.IGNORECASE
)
_FALLS = re.compile(
    r"(^|[/_.:-])(loss|perplexity|ppl|error|err|mae|mse|rmse|wer|cer|nll|bpb|bpc|fid|kl)($|[/_.:-])"
)
_RISES = re.compile(
    r"(^|[/_.:-])(accuracy|acc|accuracies|f1|auc|auroc|bleu|rouge\w*|precision|recall|map|miou|iou|"
    r"psnr|ssim|r2|rewards?|score|margins?|exact_match|pass_at_\d+)($|[/_.:-]|@)"
)


def group_of(name: str) -> str:
    """The prefix that names are grouped by.

    >>> group_of("eval/loss"), group_of("eval_loss"), group_of("rewards/chosen/mean"), group_of("x")
    ('eval', 'eval', 'rewards', '')
    """
    if "/" in name.strip("/"):
        return name.strip("/").split("/", 1)[0].lower()
    prefix = _PREFIX.match(name)
    return prefix[1].lower() if prefix else ""


def is_validation_loss(name: str) -> bool:
    """Whether it is a loss on data that the model is not trained on.

    >>> [is_validation_loss(one) for one in ("eval_loss", "val/loss", "eval_wiki_loss", "loss")]
    [True, True, True, False]
    """
    return _VALIDATION.match(name) is not None


def better(name: str) -> str | None:
    """Which way a name improves; None where it does not tell.

    >>> better("eval_loss"), better("val/accuracy"), better("tokens_seen")
    ('lower', 'higher', None)
    """
    plain = name.lower().rsplit("/", 1)[-1]
    return "lower" if _FALLS.search(plain) else "higher" if _RISES.search(plain) else None


def figures(sizes: Mapping[str, float]) -> dict[str, str]:
    """Name -> title of its figure; `sizes`: the largest magnitude of each.

    Names of a group share a figure while they can be read on one axis; one without a group has its
    own. Validation losses are drawn with the loss.

    >>> figures({"eval/f1": 0.4, "eval/acc": 0.5, "eval/tokens": 1e6, "x": 1, "eval_loss": 2})
    {'eval/f1': 'eval', 'eval/acc': 'eval', 'eval/tokens': 'eval/tokens', 'x': 'x'}
    """
    groups: dict[str, list[str]] = {}
    for name in sizes:
        if not is_validation_loss(name):
            groups.setdefault(group_of(name) or name, []).append(name)
    titles: dict[str, str] = {}
    for title, members in groups.items():
        scales: list[list[str]] = []
        for name in sorted(members, key=lambda name: sizes[name]):
            if scales and sizes[name] <= _SAME_SCALE * max(sizes[scales[-1][0]], 1e-12):
                scales[-1].append(name)
            else:
                scales.append([name])
        widest = max(scales, key=len)
        for names in scales:
            together = title if names is widest else f"{names[0]}, …"
            figure_title = together if len(names) > 1 else names[0]
            titles |= dict.fromkeys(names, figure_title)
    return titles
