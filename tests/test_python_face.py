"""What an engineer passes in a notebook, by whichever name and type it is at hand."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.widgets.sample_runs import SampleRun
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import as_script_words
from workbench.planning import Limits
from workbench.recover.policy import Recovery
from workbench.script_options.arguments import changed_arguments
from workbench.sweeping.parameters import grid_parameter, random_parameter

numpy = pytest.importorskip("numpy")
SCRIPT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"


@pytest.fixture(scope="module")
def job() -> wb.Job:
    return wb.Job.of("gpt2", gpu="h100", gpus=8, strategy="ddp")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + "p.parse_args()\nimport torch\n")
    return path


def test_words_that_mean_the_same_are_the_same_job() -> None:
    """A word twice counted its adapters twice; another order was another job."""
    options: dict[str, Any] = {"gpu": "h100", "lora_rank": 64}
    job = wb.Job.of("llama-3-8b", **options, lora_targets="q,v")
    for spelled in ("v,q", "q,v,q", ["v", "q"], {"q", "v"}, numpy.array(["v", "q"])):
        again = wb.Job.of("llama-3-8b", **options, lora_targets=spelled)
        assert again == job
        assert wb.training_memory(again) == wb.training_memory(job)
        assert all(type(word) is str for word in again.workload.lora_targets)
    assert wb.Strategy(name="fsdp", dp_shard=2, offload="parameters,optimizer") == wb.Strategy(
        name="fsdp", dp_shard=2, offload=("optimizer", "parameters")
    )


def test_numbers_and_switches_of_numpy_become_pythons() -> None:
    kept = (
        Limits(budget_usd=numpy.float32(1.5), max_gpus=numpy.int64(8)).budget_usd,
        Limits(max_gpus=numpy.int64(8)).max_gpus,
        Recovery(restarts=numpy.int32(3)).restarts,
        Recovery(max_hours=numpy.float32(2)).max_hours,
        wb.Strategy.parse("fsdp", numpy.int64(8)).dp_shard,
        wb.Cluster.rented("h100", numpy.int64(8), numpy.int64(2)).nodes,
        LaunchOptions(cpu=numpy.bool_(True)).cpu,  # noqa: FBT003
    )
    assert [type(value) for value in kept] == [float, int, int, float, int, int, bool]
    strategy = wb.Job.of("gpt2", gpus=2, static_graph=numpy.bool_(True)).strategy  # noqa: FBT003
    assert strategy.ddp.static_graph is True
    plain = wb.inference_memory("gpt2", 128, batch=2)
    assert wb.inference_memory("gpt2", numpy.int64(128), batch=numpy.int16(2)) == plain
    job = wb.Job.of("gpt2", gpu="h100", gpus=2)
    plans = wb.plan_on(job.cluster, job, tokens=1e9, global_batch=numpy.int64(64))
    assert type(plans.global_batch) is int


def test_a_scripts_arguments_may_be_numbers_of_numpy() -> None:
    given = ["--lr", numpy.float32(0.5), "--steps", numpy.int64(5), "--wd", Decimal("0.1")]
    assert as_script_words(given) == ["--lr", "0.5", "--steps", "5", "--wd", "0.1"]
    assert LaunchOptions(environment={"SEED": numpy.int64(3)}).environment == {"SEED": "3"}


@pytest.mark.parametrize(
    "values", [numpy.array([1e-4, 1e-3]), iter([1e-4, 1e-3]), {1e-3, 1e-4}, (1e-4, 1e-3)]
)
def test_a_grid_takes_any_values_one_after_another(values: object) -> None:
    assert grid_parameter("lr", values).values == ("0.0001", "0.001")


def test_a_grid_refuses_a_mapping() -> None:
    for make in (grid_parameter, random_parameter):
        with pytest.raises(wb.UsageError, match="give a list of values"):
            make("lr", {"min": 1e-5, "max": 1e-3})
    assert random_parameter("layers", numpy.arange(2, 5)).values == ("2", "3", "4")


def test_a_job_is_changed_to_another_model(job: wb.Job) -> None:
    """It kept the old one and said nothing."""
    assert job.changed(model="llama-3-8b") == wb.Job.of("llama-3-8b", **job.given)


@pytest.mark.parametrize("ask", [wb.training_memory, wb.largest_micro_batch, wb.switches])
def test_what_comes_first_may_be_given_by_name(ask: Callable[..., object], job: wb.Job) -> None:
    assert ask(job=job) == ask(job)
    assert ask(workload=job) == ask(job)
    assert ask(model="gpt2", gpu="h100", gpus=8, strategy="ddp") == ask(job)
    parts: dict[str, Any] = {"workload": job.workload, "strategy": job.strategy}
    assert ask(**parts) == ask(job.workload, job.strategy)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda job: wb.training_memory(), "takes a Job, or a model's name with options"),
        (lambda job: wb.training_memory(job.workload), "Give a strategy, or a Job"),
        (lambda job: wb.training_memory(job.workload, "fsdp"), "the strategy is a Strategy"),
        (lambda job: wb.training_memory(job.workload, job.strategy, None), "a kind of device"),
        (lambda job: wb.training_memory(job=job, model="gpt2"), "got model beside a Job"),
        (lambda job: wb.step_time(job.workload, job.strategy), "GPUs of the catalog"),
        (lambda job: wb.fewest_gpus("gpt2", "h100"), "Give a Job"),
        (lambda job: wb.plan_on("h100", job, tokens=1e9), "no accelerator of the catalog"),
        (lambda job: wb.Job.of(object()), "Model.from_module(module)"),
        (lambda job: wb.Job.of(None), "not of type NoneType"),
        (lambda job: wb.inference_memory(job, 128), "not of type Job"),
        (lambda job: wb.Job.of("x" * 300), "cannot be looked up: File name too long"),
        (lambda job: wb.Job.of("gpt2", precision=numpy.array(["a", "b"])), "must be a text"),
        (lambda job: LaunchOptions(wrap=dict), "wrap must be a text, not <class 'dict'>"),
        (lambda job: LaunchOptions(options=["recompute"]), "options must be a dict"),
        (lambda job: LaunchOptions(job="gpt2"), "job must be a Job"),
        (lambda job: LaunchOptions(strategy=3), "strategy must be a name or a Strategy"),
        (lambda job: LaunchOptions(cluster="h100"), "cluster must be a Cluster"),
        (lambda job: LaunchOptions(recovery={"restart": 3}), "Did you mean restarts"),
        (lambda job: wb.request("gpt", restarts=3), "give recovery={'restarts': 3}"),
        (lambda job: wb.request("gpt", recompute="full"), "give options={'recompute': 'full'}"),
        (lambda job: wb.sweep(job, grid={"lr": [1]}), "A sweep is of a recipe or a script"),
        (lambda job: wb.sweep("gpt", grid={"lr": [1]}, trails=3), "Did you mean trials"),
        (lambda job: wb.sweep("gpt", grid={"lr": [1]}, restarts=3), "give recovery="),
        (lambda job: wb.export("gpt", "slurm", gpuss=3), "Did you mean gpu"),
        (lambda job: wb.export(None, "slurm"), "not of type NoneType"),
        (lambda job: wb.export("gpt", None), "Unknown engine 'None'"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(
    ask: Callable[[Any], object], says: str, job: wb.Job
) -> None:
    with pytest.raises(wb.UsageError, match=re.escape(says)):
        ask(job)


def test_one_text_is_never_its_letters(script: Path) -> None:
    """Each took a text apart into one-letter words, and some started what came out."""
    for ask in (
        wb.measure,
        wb.scale,
        lambda target, words: wb.export(target, "slurm", arguments=words),
    ):
        with pytest.raises(wb.UsageError, match="arguments are a list of words"):
            ask(str(script), "--lr 3")
    assert changed_arguments(["--lr", "3", "--bf16"], [], "--lr") == ["--bf16"]
    assert wb.offers(providers="lambda, aws") == wb.offers(providers=["lambda", "aws"])
    assert Limits(providers="lambda,aws") == Limits(providers=("lambda", "aws"))
    job = wb.Job.of("gpt2", gpu="h100")
    assert wb.fewest_gpus(job, strategies="ddp,fsdp") == wb.fewest_gpus(
        job, strategies=["ddp", "fsdp"]
    )
    assert [fit.gpu.id for fit in wb.smallest_gpu(job, candidates=["h100"])] == ["h100-sxm"]


def test_numbers_among_the_arguments_are_exported(script: Path) -> None:
    exported = wb.export(script, "slurm", arguments=["--lr", 3e-4], nodes=numpy.int64(2))
    assert exported.job.arguments == ("--lr", "0.0003")
    assert exported.job.nodes == 2


def test_a_store_stands_wherever_its_path_does(tmp_path: Path) -> None:
    store = wb.Store(tmp_path)
    assert store == wb.Store(str(tmp_path)) == wb.Store(store)
    assert {store: 1}[wb.Store(tmp_path)] == 1
    assert wb.runs(store) == []
    with pytest.raises(wb.RunNotFoundError):
        wb.attach("last", store)


def test_the_same_question_has_an_equal_answer(job: wb.Job, script: Path, tmp_path: Path) -> None:
    plans = wb.plan_on(job.cluster, job, tokens=1e9)
    assert plans == wb.plan_on(job.cluster, job, tokens=1e9)
    request = wb.request(script, store=tmp_path, cpu=True)
    assert request == wb.request(script, store=tmp_path, cpu=True)
    for answer in (plans, request, job, wb.training_memory(job), wb.step_time(job)):
        assert pickle.loads(pickle.dumps(answer)) == answer
        assert copy.deepcopy(answer) == answer


def test_recovery_may_be_given_by_its_options() -> None:
    options = LaunchOptions(recovery={"restarts": numpy.int64(3)})
    assert options.recovery == Recovery(restarts=3)


def _train(lr: float, steps: int = 3) -> None:
    print(lr, steps)


async def _later() -> None:
    pass


def _decorated(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def called() -> object:
        return function(0.1)

    return called


def test_a_functions_call_is_checked_before_ranks_start(tmp_path: Path) -> None:
    """Each started ranks that failed, or ran with what nobody had written."""

    def ask(function: Callable[..., object], arguments: Any = ()) -> tuple[str, ...]:
        return wb.request(function, arguments, store=tmp_path, cpu=True).arguments

    assert ask(_train, [numpy.float32(0.5)]) == ("0.5",)
    assert ask(_train, [{"lr": numpy.int64(3)}, [numpy.float64(0.1)]]) == ("{'lr': 3}", "[0.1]")
    assert ask(_decorated(_train)) == ()
    for arguments, says in (
        ((), "missing a required argument: 'lr'"),
        ([1, 2, 3], "too many positional arguments"),
        ("ab", "a list in its order"),
        ({"lr": 3}, "a list in its order"),
        (None, "a list in its order"),
        ([tmp_path], "str(path)"),
    ):
        with pytest.raises(wb.UsageError, match=re.escape(says)):
            ask(_train, arguments)
    with pytest.raises(wb.UsageError, match="runs none of it"):
        ask(_later)


def test_a_run_is_asked_by_any_number_and_word(tmp_path: Path) -> None:
    SampleRun(tmp_path, "one").write(3)
    run = wb.attach("one", tmp_path)
    assert run.metrics(keys="loss,lr") == run.metrics(keys=["loss", "lr"])
    assert {type(row["rank"]) for row in run.metrics(rank=numpy.int64(0))} <= {int}
    for ask, says in (
        (lambda: run.metrics(rank="0"), "has ranks 0 to 1, not '0'"),
        (lambda: run.logs(rank=2), "has ranks 0 to 1, not 2"),
        (lambda: run.ask("chekpoint"), "Did you mean checkpoint"),
        (lambda: run.set(lr="fast"), "lr=fast: give a finite number"),
        (lambda: run.look("model", kinds="weight"), "'weight' cannot be looked at"),
    ):
        with pytest.raises(wb.UsageError, match=re.escape(says)):
            ask()


def test_a_deleted_run_is_called_gone(tmp_path: Path) -> None:
    """It was another user's, who had launched it without a job."""
    SampleRun(tmp_path, "one").write(3)
    run = wb.attach("one", tmp_path)
    shutil.rmtree(run.directory)
    assert run.job is None
    assert "is gone" in run.why_no_job()
    assert "is gone" in (run.read_only or "")
    for act in (run.resume, run.rerun, run.fork, run.adopt):
        with pytest.raises(wb.RunNotFoundError, match="its directory is gone, deleted or moved"):
            act()
