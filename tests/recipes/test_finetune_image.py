"""finetune_image.py: what its folder holds, its options, and runs of a tiny model on any ranks."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.recipes.tiny_image import model_folder, picture_folder
from workbench.errors import UsageError
from workbench.recipes import shape
from workbench.store.layout import RunPaths
from workbench.trained_model.export import export_model
from workbench.trained_model.exported import ModelExport
from workbench.training_data.pictures import examine_pictures, list_pictures

pytestmark = pytest.mark.skipif(
    find_spec("diffusers") is None, reason="pip install 'training-workbench[image]'"
)
PROMPT = "a red field with a white square"
TINY = ("--resolution", "32", "--steps", "6", "--warmup", "2", "--log-every", "2", "--lr", "1e-3")


def test_captions_beside_and_in_a_table_are_the_same(tmp_path: Path) -> None:
    beside = examine_pictures(picture_folder(tmp_path / "a", 4))
    table = examine_pictures(picture_folder(tmp_path / "b", 4, table=True))
    assert (beside.captions, table.captions) == ("text files", "metadata.jsonl")
    for one, other in zip(beside.pictures, table.pictures, strict=True):
        assert (one.path.name, one.caption) == (other.path.name, other.caption)
    assert beside.first[1].caption == "a green field with a white square"
    assert [(one.width, one.height) for one in beside.first] == [(40, 36), (41, 36), (42, 36)]
    assert not beside.problems


def test_each_picture_that_cannot_be_used_is_a_sentence_with_its_name(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "pictures", 5)
    (folder / "01.txt").unlink()
    (folder / "02.txt").write_text("  \n")
    whole = (folder / "03.png").read_bytes()
    (folder / "03.png").write_bytes(whole[: len(whole) // 2])
    (folder / "04.png").write_bytes(b"no picture")
    report = examine_pictures(folder)
    assert [one.path.name for one in report.pictures] == ["00.png"]
    said = " ".join(report.problems)
    assert "01.png has no caption: write it into 01.txt beside it." in said
    assert "02.png has no caption" in said
    assert "03.png cannot be opened: " in said
    assert "04.png cannot be opened: cannot identify image file" in said
    assert str(tmp_path) not in said
    assert len(report.problems) == 4


def test_rows_of_a_table_that_lead_nowhere(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "pictures", 2, table=True)
    with (folder / "metadata.jsonl").open("a") as file:
        file.write('\n{"file_name": "gone.png", "text": "x"}\n{broken\n{"text": "x"}\n')
        file.write('{"file_name": "../x.png", "text": "x"}\n')
    said = " ".join(list_pictures(folder).problems)
    for part in ("gone.png of metadata.jsonl is not there", "line 4: ", 'line 5: no "file_name"'):
        assert part in said
    assert "line 6: ../x.png lies outside the folder" in said
    with pytest.raises(UsageError, match="holds no picture"):
        list_pictures(tmp_path)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("own")
    picture_folder(folder / "pictures")
    return (
        *("--model", str(model_folder(folder / "model"))),
        *("--data", str(folder / "pictures")),
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--resolution", "36"), "not a multiple of 8"),
        (("--sample-every", "2"), "belong together"),
        (("--sample-every", "2", "--sample-prompts", *"abcdefghi"), "give at most 8"),
        (("--lora-rank", "0"), "--lora-rank 0"),
    ],
)
def test_bad_arguments_are_one_clear_line(more: tuple[str, ...], said: str) -> None:
    words = ["--model", "m", "--data", "d"]
    assert shape(words, recipe="finetune_image")["steps"] == 500
    with pytest.raises(UsageError, match=r"finetune_image\.py: ") as error:
        shape([*words, *more], recipe="finetune_image")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--model", "./nothing"), "is not there: give a diffusers folder"),
        (("--model", "{pictures}"), "has no readable model_index.json"),
        (("--model", "{other}"), "is a StableDiffusionXLPipeline; this trains a Stable"),
        (("--data", "./nothing"), "is not a folder: give one of pictures"),
        (("--data", "{other}"), "holds no picture"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_start(
    tmp_path: Path, store: Path, more: tuple[str, ...], said: str
) -> None:
    places = {"pictures": picture_folder(tmp_path / "pictures", 1), "other": tmp_path / "other"}
    for name, kind in (
        ("model", "StableDiffusionPipeline"),
        ("other", "StableDiffusionXLPipeline"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text(json.dumps({"_class_name": kind}))
    words = ["--model", str(tmp_path / "model"), "--data", str(places["pictures"])]
    words += [word.format(**places) for word in more]
    with pytest.raises(UsageError, match=said):
        wb.request("finetune_image", words, processes=1, cpu=True, store=store)


def test_the_dry_run_shows_what_is_trained_on(tmp_path: Path, store: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    folder = picture_folder(tmp_path / "pictures")
    (folder / "99.png").write_bytes(b"")
    words = ["--model", str(tmp_path), "--data", str(folder), *TINY]
    request = wb.request("finetune_image", words, processes=2, cpu=True, store=store)
    said = " ".join(request.warnings)
    assert "12 pictures with captions from text files, first 00.png: 'a red field" in said
    assert "99.png has no caption: write it into 99.txt beside it." in said


def trained(store: Path, own: tuple[str, ...], *more: str, **how: Any) -> wb.Run:
    how = {"strategy": "single", "processes": 1, **how}
    run = wb.launch("finetune_image", [*own, *TINY, *more], cpu=True, store=store, warm=True, **how)
    assert run.wait(500) == "succeeded", run.logs(tail=30)
    return run


def losses(run: wb.Run) -> list[float]:
    return [row["loss"] for row in run.metrics()]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_same_curve_on_any_ranks_and_resumed(
    store: Path, tmp_path: Path, own: tuple[str, ...]
) -> None:
    alone = trained(store, own, "--micro-batch", "4", "--min-snr", "5")
    for strategy, batch in (("ddp", ("1", "--accumulate", "2")), ("fsdp", ("2",))):
        folder = ("--checkpoint-dir", str(tmp_path / strategy), "--checkpoint-every", "3")
        words = ("--micro-batch", *batch, "--min-snr", "5", *folder)
        spread = trained(store, own, *words, strategy=strategy, processes=2)
        assert spread.summary()["world_size"] == 2
        assert spread.summary()["loss_last"] == pytest.approx(
            alone.summary()["loss_last"], rel=1e-4
        )
        at = str(tmp_path / strategy / "step-00000003")
        rest = trained(store, own, *words, "--resume", at, strategy=strategy, processes=2)
        assert losses(rest) == pytest.approx(losses(spread)[3:], rel=1e-6)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_samples_change_nothing_and_the_adapter_loads(
    store: Path, tmp_path: Path, own: tuple[str, ...]
) -> None:
    import torch
    from diffusers import StableDiffusionPipeline

    how = ("--sample-every", "3", "--sample-prompts", PROMPT, "--sample-steps", "3")
    run = trained(store, own, *how, "--checkpoint-every", "6", processes=2, strategy="ddp")
    bare = trained(store, own, processes=2, strategy="ddp")
    assert losses(run) == losses(bare)
    samples = run.samples()
    assert [(row["step"], row["prompt"]) for row in samples] == [
        (step, PROMPT) for step in (0, 3, 6)
    ]
    files = [run.directory / row["answer"] for row in samples]
    assert len({one.read_bytes() for one in files}) == 3
    pipeline = StableDiffusionPipeline.from_pretrained(own[1], safety_checker=None)

    def drawn() -> Any:
        generator = torch.Generator().manual_seed(0)
        size = {"height": 32, "width": 32, "num_inference_steps": 2}
        return pipeline(PROMPT, generator=generator, output_type="np", **size).images

    before = drawn()
    pipeline.load_lora_weights(run.directory / "checkpoints" / "lora")
    assert (abs(drawn() - before)).max() > 1e-4
    after = drawn()
    pipeline.unload_lora_weights()
    assert (abs(drawn() - before)).max() < 1e-6
    exported = export_model(RunPaths(run.directory), ModelExport(to=str(tmp_path / "own")))
    assert not exported.merged
    assert "load_lora_weights" in (tmp_path / "own" / "README.md").read_text()
    pipeline.load_lora_weights(tmp_path / "own")
    assert (abs(drawn() - after)).max() < 1e-6
