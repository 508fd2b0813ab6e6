"""Exports as files: what they carry, and that they train where no workbench is."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import workbench as wb
from tests.cli.conftest import Command, command  # noqa: F401  (a fixture)
from tests.engines.sample_jobs import job, rented
from workbench.engines import export_request, launching, refusals
from workbench.engines.export_files import files_of
from workbench.engines.export_request import plan_entry
from workbench.engines.exporting import checkpoint_folder, export, ship, slug
from workbench.engines.jobs import job_from_plan, job_from_request, job_from_run
from workbench.errors import StoreError, UsageError
from workbench.store.layout import RunPaths
from workbench.trainer_configs.config_fields import read_text

Cli = Callable[..., tuple[int, str]]
SECRET = "hf_" + "a1B2c3D4e5" * 4


@pytest.fixture
def run_cli(command: Command) -> Cli:  # noqa: F811
    """Exit code and output of ``workbench …``, as a terminal gets them."""

    def run(*words: str) -> tuple[int, str]:
        done = command(*words)
        return done.code, done.out + done.err if done.code else done.out

    return run


def started(folder: Path, **variables: str) -> subprocess.Popen[str]:
    """``launch.sh`` of a folder, in an environment where no workbench can be imported."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    (folder.parent / "without").mkdir(exist_ok=True)
    (folder.parent / "without" / "workbench.py").write_text("raise ImportError('not here')\n")
    environment["PYTHONPATH"] = str(folder.parent / "without")  # before what is installed
    environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        ["bash", str(folder / "launch.sh")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    )


@pytest.mark.full
@pytest.mark.slow
def test_two_machines_train_from_a_copied_folder_and_resume(tmp_path: Path) -> None:
    """Twice the same two scripts: the second time they continue from the checkpoint of the first."""
    arguments = ["--steps", "6", "--size", "1", "--seq-len", "32", "--micro-batch", "2"]
    one = job_from_request(
        "gpt",
        arguments,
        nodes=2,
        strategy="fsdp",
        checkpoint_every=3,
        python=sys.executable,
        port=_free_port(),
    )
    made = export(replace(one, checkpoint_uri="volume:ours"), "skypilot")
    folder = tmp_path / "folder"
    made.write(folder)
    text = (folder / "launch.sh").read_text().replace("/checkpoints/", f"{tmp_path}/shared/")
    for first, last in (("from step 0", 6), ("from step 6", 9)):
        (folder / "launch.sh").write_text(text.replace("--steps 6", f"--steps {last}"))
        processes = [started(folder, NODE_RANK=str(rank)) for rank in range(2)]
        said = [process.communicate(timeout=150)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said[0][-3000:]
        assert first in said[0], said[0][-3000:]
    assert (tmp_path / "shared" / "gpt-fsdp" / "step-00000009").is_dir()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.full
@pytest.mark.slow
def test_a_run_of_this_host_becomes_files_without_its_secrets(
    start: Callable[..., wb.Run], store: Path, tmp_path: Path, run_cli: Cli
) -> None:
    run = start(
        "gpt",
        ("--steps", "2", "--size", "1", "--checkpoint-every", "1", "--seq-len", "32"),
        strategy="ddp",
        processes=2,
        environment={"HF_TOKEN": SECRET, "NCCL_DEBUG": "WARN"},
    )
    assert run.wait(120) == "succeeded"
    code, printed = run_cli(
        *("export", run.id, "--store", str(store), "--to", "skypilot", "--nodes", "2"),
        *("--nproc", "8", "--gpu", "h100", "--spot", "--bucket", "s3://bucket/x"),
        *("--provider", "nebius", "--out", str(tmp_path / "out"), "--json"),
    )
    assert code == 0, printed
    document = json.loads(printed)
    assert SECRET not in printed
    assert not any(
        SECRET in path.read_text() for path in tmp_path.rglob("out/**/*") if path.is_file()
    )
    task = yaml.safe_load((tmp_path / "out" / "skypilot.yaml").read_text())
    assert task["secrets"] == {"HF_TOKEN": None}
    assert task["envs"] == {"NCCL_DEBUG": "WARN"}
    assert task["resources"]["accelerators"] == "H100:8"
    assert document["next"][0].startswith("sky jobs launch --secret HF_TOKEN")
    launch = (tmp_path / "out" / "launch.sh").read_text()
    assert "--num_machines 2" in launch
    assert "--checkpoint-every 1 " in launch
    assert "--checkpoint-dir /checkpoints/gpt-ddp2 " in launch
    assert "--resume latest" in launch
    moved = job_from_run(wb.Store(store).find(run.id), nodes=2, processes_per_node=4)
    assert moved.strategy.dp_replicate == 8


@pytest.mark.parametrize("engine", refusals.ENGINES)
def test_every_engine_carries_script_strategy_and_steps(engine: str) -> None:
    storage = {"skypilot": "s3://b/p", "kubeflow": "pvc:c"}.get(engine, "volume:v")
    storage = "/shared" if engine in {"torchrun", "accelerate", "slurm"} else storage
    one = job(
        nodes=2,
        processes_per_node=8,
        gpu="h100",
        strategy="ddp",
        checkpoint_uri=storage,
        checkpoint_every=50,
    )
    made = export(one, engine, address="10.0.0.1")
    text = "\n".join(made.files.values())
    assert "code/gpt.py" in text or engine == "kubeflow"
    assert "--steps 1000 --size 12" in text
    assert "--checkpoint-every 50" in text
    assert "--resume latest" in text
    assert made.next


def test_a_recipe_goes_with_all_that_it_imports_and_nothing_else(tmp_path: Path) -> None:
    path = wb.recipes.recipes()["gpt"].path
    found = files_of(path)
    assert next(iter(found)) == "gpt.py"
    assert {"checkpoint_files.py", "recipe_options.py", "corpus.py"} <= set(found)
    assert "lora.py" not in found
    package = tmp_path / "tools"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("import json\n")
    (tmp_path / "other.py").write_text("import not_here\n")
    script = tmp_path / "train.py"
    script.write_text("import os\nfrom tools import part\n")
    assert set(files_of(script)) == {"train.py", "tools/__init__.py", "tools/part.py"}
    (package / "__init__.py").write_text("from .part import f\nfrom . import more\n")
    (package / "more.py").write_text("from .. import other\n")
    script.write_text("from tools import f\n")
    relative = {"tools/__init__.py", "tools/part.py", "tools/more.py", "other.py"}
    assert set(files_of(script)) == {"train.py", *relative}


def test_values_that_would_break_yaml_or_shell_come_back_whole() -> None:
    """A name, a value and an argument with everything that is special somewhere."""
    odd = 'it\'s "x": {a} # b\n- c $HOME `id` ${{ y }}'
    one = rented("s3://b/p")["spot"]
    one = replace(one, name=odd.replace("\n", " "), environment={"NOTE": odd})
    one = replace(one, arguments=("--note", odd))
    made = export(one, "skypilot")
    assert yaml.safe_load(made.files["skypilot.yaml"])["envs"] == {"NOTE": odd}
    kept = replace(one, spot=False, provider=None, checkpoint_uri=None, setup=(f": {odd!r}",))
    made_there = yaml.safe_load(export(kept, "kubeflow").files["trainjob.yaml"])
    trainer = made_there["spec"]["trainer"]
    assert trainer["env"] == [{"name": "NOTE", "value": odd.replace("$", "$$")}]
    assert f": {odd!r}".replace("$", "$$") in trainer["args"][0]
    checked = subprocess.run(["bash", "-n"], input=made.files["launch.sh"], text=True, check=False)
    assert checked.returncode == 0


@pytest.mark.slow
def test_jobs_of_different_names_keep_different_checkpoints() -> None:
    """Also where an engine's names lack what tells them apart; each is one that dstack takes."""
    end = "of-a-name-that-is-longer-than-engines-take"
    names = (
        "日本",
        "中国",
        "näme",
        "nöme",
        f"lr-1e-3-{end}",
        f"{end}-1",
        f"{end}-2",
        "a",
        "7",
        "9" * 41,
    )
    jobs = [job(name=name, checkpoint_uri="/shared") for name in names]
    assert len({checkpoint_folder(one) for one in jobs}) == len(names)
    for one in jobs:
        made = export(replace(one, checkpoint_uri=None), "dstack").files
        for file in ("task.dstack.yml", "fleet.dstack.yml"):
            assert re.fullmatch("[a-z][a-z0-9-]{1,40}", yaml.safe_load(made[file])["name"])
    assert slug(job(name="My run_2")) == "my-run-2"


def test_files_in_any_encoding_go_into_a_config_map(tmp_path: Path) -> None:
    """Also with the characters that YAML takes for ends of lines."""
    latin = "# coding: latin-1\nNAME = 'Zoë'\n".encode("latin-1")
    breaks = "import part\nTEXT = 'a\u2028b\x85'\n"
    (tmp_path / "part.py").write_bytes(latin)
    (tmp_path / "train.py").write_text(breaks, encoding="utf-8")
    one = job_from_request(str(tmp_path / "train.py"))
    made = export(one, "kubeflow").files
    config, trainjob = yaml.safe_load(made["files.yaml"]), yaml.safe_load(made["trainjob.yaml"])
    template = trainjob["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]
    pod = template["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    key = {item["path"]: item["key"] for item in pod["volumes"][0]["configMap"]["items"]}
    assert base64.b64decode(config["binaryData"][key["code/part.py"]]) == latin
    assert config["data"][key["code/train.py"]] == breaks


def test_files_that_arguments_name_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    words = ("--model", "my model", "--data=/etc/hosts", "--steps", "4", "--out", "new")
    notes = " ".join(export(replace(job("finetune"), arguments=words), "skypilot").notes)
    assert "do not go with it: 'my model' /etc/hosts. What" in notes


def test_a_missing_file_is_said_in_words(tmp_path: Path) -> None:
    for look in (lambda path: plan_entry(path, 1), read_text):
        with pytest.raises(UsageError, match=r"cannot be read: No such file or directory\. \w+"):
            look(tmp_path / "plans.json")


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"plans": 5}', '{"plans": {"a": 1}}', '{"plans": [3]}']
)
def test_other_json_is_no_plan(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not output of workbench plan"):
        plan_entry(path, 1)
    path.write_text('{"plans": []}')
    with pytest.raises(UsageError, match="has no plans"):
        plan_entry(path, 1)


def test_plans_become_jobs(tmp_path: Path, run_cli: Cli) -> None:
    code, printed = run_cli(
        *("plan", "--model", "llama-2-7b", "--tokens", "1B", "--gpu", "h100", "--json"),
        *("--max-gpus", "16", "--providers", "nebius", "--seq-len", "1024", "--precision", "fp16"),
    )
    assert code == 0, printed[-500:]
    path = tmp_path / "plans.json"
    path.write_text(printed)
    first = json.loads(path.read_text())["plans"][0]
    code, printed = run_cli("export", "gpt", "--plan", str(path), "--to", "skypilot", "--json")
    assert code == 0, printed[-800:]
    document = json.loads(printed)
    assert document["nodes"] * document["processes_per_node"] == first["gpus"]
    task = yaml.safe_load(document["files"]["skypilot.yaml"])
    assert task["resources"]["infra"].startswith("nebius")
    assert f"--micro-batch {first['micro_batch']}" in document["files"]["launch.sh"]
    assert (first["seq_len"], first["precision"]) == (1024, "fp16")
    assert "--seq-len 1024 --precision fp16" in document["files"]["launch.sh"]
    code, printed = run_cli("export", "gpt", "--plan", str(path), "--rank", "999", "--to", "slurm")
    assert code == 2
    assert "plans, counted from 1" in printed


@pytest.mark.parametrize(
    ("setup", "launch", "limit", "said"),
    [
        ((), "exit 0", None, {"money until it is deleted"}),
        ((), "exit 3", None, {"training failed", "money until it is deleted"}),
        ((), "sleep 60", 0.0003, {"the time limit is over", "money until it is deleted"}),
        (("false",), "exit 0", None, None),  # what cannot be prepared is not trained
    ],
)
def test_a_runpod_container_trains_once_and_stays(
    tmp_path: Path, setup: tuple[str, ...], launch: str, limit: float | None, said: set[str] | None
) -> None:
    """It would be started again if it ended. Run as the container does, but for the paths."""
    one = job(nodes=2, processes_per_node=8, gpu="h100", strategy="ddp", checkpoint_uri="volume:v")
    one = replace(one, python="true", setup=setup, max_hours=limit)
    body = json.loads(export(one, "runpod").files["cluster.json"])
    words = shlex.split(body["args"])
    assert "\n" not in body["args"]
    assert words[:2] == ["bash", "-c"]
    packed = words[2].split()[1]
    text = base64.b64decode(packed).decode().replace("/checkpoints/", f"{tmp_path}/")
    packed_here = base64.b64encode(text.encode()).decode()
    shell = words[2].replace(packed, packed_here).replace("/tmp/", f"{tmp_path}/")
    (tmp_path / "gpt-ddp-files").mkdir()
    (tmp_path / "gpt-ddp-files" / "launch.sh").write_text(f"echo at $MASTER_ADDR\n{launch}\n")
    process = subprocess.Popen(
        ["bash", "-c", shell],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "PRIMARY_ADDR": "10.1.1.1", "PRIMARY_PORT": "1"},
    )
    try:
        assert process.stdout is not None
        lines = list[str]()
        while (line := process.stdout.readline()) and "money until it is deleted" not in line:
            lines.append(line.strip())
        if said is None:
            assert process.wait(240) != 0
            assert lines == []
            return
        lines.append(line.strip())
        assert {"at 10.1.1.1", *said} == {one.removeprefix("the cluster costs ") for one in lines}
        assert process.poll() is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_name_of_two_lines_stays_a_comment() -> None:
    one = replace(job(gpu="l4"), name="a\nspec: {}\r\n# b")
    for engine, name in (("skypilot", "skypilot.yaml"), ("dstack", "task.dstack.yml")):
        text = export(one, engine).files[name]
        assert text.startswith("# a spec: {} # b: 1 x 1 ranks\n")
        assert "spec" not in yaml.safe_load(text)
    text = export(one, "kubeflow").files["trainjob.yaml"]
    assert set(yaml.safe_load(text)) == {"apiVersion", "kind", "metadata", "spec"}
    assert text.startswith("# a spec: {} # b:")


PLAN: dict[str, object] = {
    "gpus": 8,
    "nodes": 1,
    "strategy": "fsdp",
    "recompute": "none",
    "recompute_parts": [],
    "offload": [],
    "micro_batch": 2,
    "accumulate": 4,
    "seq_len": 4096,
    "precision": "bf16",
    "gpu": "h100-sxm",
    "provider": "nebius",
    "region": "",
    "spot": False,
}


def test_a_recipe_gets_the_plans_batch_length_and_precision() -> None:
    def words(recipe: str, *given: str) -> str:
        return " ".join(job_from_plan(PLAN, recipe, given).arguments)

    batch = "--micro-batch 2 --accumulate 4"
    assert words("gpt") == f"{batch} --seq-len 4096 --precision bf16"
    assert words("gpt", "--precision=fp16") == f"--precision=fp16 {batch} --seq-len 4096"
    assert words("gpt", "--micro-batch=1", "--seq-len", "64") == (
        "--micro-batch=1 --seq-len 64 --precision bf16"
    )
    assert words("vision") == f"{batch} --precision bf16"  # it has no sequences
    assert words("gpt", "--precision=fp8") == f"--precision=fp8 {batch} --seq-len 4096"
    with pytest.raises(UsageError, match=r"as the plan says.*fp8.*instead"):
        job_from_plan({**PLAN, "precision": "fp8"}, "vision")
    with pytest.raises(UsageError, match="seq_len"):
        job_from_plan({name: one for name, one in PLAN.items() if name != "seq_len"}, "gpt")


def test_a_gpu_that_the_catalog_lacks_is_not_exported_as_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    document: dict[str, object] = {
        "name": "big",
        "recipe": "gpt",
        "script": "gpt",
        "arguments": [],
        "device": "cuda",
        "strategy": {"name": "single"},
        "cluster": {"gpus": [{"name": "NVIDIA Z9000"}]},
    }
    (folder / "run.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"NVIDIA Z9000.*Give --gpu"):
        job_from_run(RunPaths(folder))
    assert job_from_run(RunPaths(folder), gpu="h100").gpu == "h100-sxm"


@pytest.mark.parametrize(
    ("training", "code", "said"),
    [
        ("bash -c 'exit 3'", 3, ""),
        ("bash -c 'kill -9 $$'", 137, ""),  # before the time: not ours
        ("sleep 60", 0, "the time limit is over"),
        ("""bash -c 'trap "" TERM; while :; do sleep 1; done'""", 0, "the time limit is over"),
        ("true", 0, ""),
    ],
)
def test_the_time_limit_ends_what_does_not_listen_too(
    monkeypatch: pytest.MonkeyPatch, training: str, code: int, said: str
) -> None:
    """An hour is scaled down to 4 s: the shell counts whole ones, and one passes in a moment."""
    monkeypatch.setattr(launching, "_GRACE_SECONDS", 1)
    text = launching.limited(job(max_hours=4 / 3600), training)
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == code, text
    assert said in done.stdout


def test_refused_combinations_end_with_two_and_the_reason(run_cli: Cli) -> None:
    code, printed = run_cli(
        *("export", "gpt", "--to", "skypilot", "--nodes", "2", "--nproc", "8", "--gpu", "h100"),
        *("--provider", "runpod"),
    )
    assert code == 2
    assert "non-trivial" in printed
    assert "--to runpod" in printed
    code, printed = run_cli(
        "export", "gpt", "--to", "torchrun", "--strategy", "fsdp", "--nproc", "2"
    )
    assert code == 2
    assert "accelerate" in printed
    with pytest.raises(UsageError, match="Did you mean skypilot"):
        export(job(gpu="l4"), "skypilott")


@pytest.mark.parametrize(
    "words",
    [
        ("--token", "anything"),
        (f"--hub={SECRET}",),
        ("--note", "[redacted]"),
        ("wandb.api_key=abcdefgh",),
    ],
)
def test_secrets_among_the_arguments_are_refused_and_not_repeated(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="argument is a secret") as refused:
        ship(replace(job(), arguments=words))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"environment": {"HF_TOKEN": "anything"}},
        {"environment": {"NOTE": SECRET}},
        {"setup": (f"pip install https://me:{SECRET}@host/x",)},
        {"checkpoint_uri": f"s3://me:{SECRET}@host/x"},
    ],
)
def test_secrets_elsewhere_are_refused_too(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="secret") as refused:
        ship(job(**given))
    assert SECRET not in str(refused.value)


def test_a_file_of_the_user_stays_and_an_export_may_be_written_again(tmp_path: Path) -> None:
    one = export(job(), "accelerate")
    own = tmp_path / "mine" / "code" / "gpt.py"
    own.parent.mkdir(parents=True)
    own.write_text("mine\n")
    with pytest.raises(StoreError, match="not written by an export"):
        one.write(tmp_path / "mine")
    assert own.read_text() == "mine\n"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["code"]  # nothing before that
    one.write(tmp_path / "ours")
    other = export(job(nodes=2), "accelerate", address="10.0.0.1")
    assert other.files["node-0.sh"] != one.files["node-0.sh"]
    other.write(tmp_path / "ours")
    assert (tmp_path / "ours" / "node-0.sh").read_text() == other.files["node-0.sh"]
    (tmp_path / "ours" / "node-2.sh").write_text("mine\n")
    with pytest.raises(StoreError, match=r"node-2\.sh exists and was not written"):
        export(job(nodes=3), "accelerate", address="10.0.0.1").write(tmp_path / "ours")


@pytest.mark.parametrize("name", ["node-0.sh", "code/gpt.py", "code"])
def test_no_link_is_followed(tmp_path: Path, name: str) -> None:
    """Neither a file that is one nor a folder that leads elsewhere."""
    one = export(job(), "accelerate")
    one.write(tmp_path / "out")
    outside = tmp_path / "outside"
    (outside if name == "code" else tmp_path).mkdir(exist_ok=True)
    if name == "code":
        shutil.rmtree(tmp_path / "out" / "code")
    else:
        outside.write_text("mine\n")
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / name).symlink_to(outside)
    with pytest.raises(StoreError, match="is a link"):
        one.write(tmp_path / "out")
    assert (list(outside.iterdir()) == []) if name == "code" else outside.read_text() == "mine\n"


def test_an_option_counts_in_its_one_word_form() -> None:
    """As --resume=… and --checkpoint-dir=…: not given twice."""
    one = job(checkpoint_uri="/shared", checkpoint_every=5)
    text = export(one, "accelerate").files["node-0.sh"]
    assert "--checkpoint-dir /shared" in text
    assert "--resume latest" in text
    one = replace(one, arguments=("--checkpoint-dir=/mine", "--resume=/mine/step-1"))
    text = export(one, "accelerate").files["node-0.sh"]
    assert "--checkpoint-dir /shared" not in text
    assert "--resume latest" not in text


def test_a_described_job_is_exported_as_it_is(tmp_path: Path) -> None:
    small = wb.request("gpt", ["--size", "2", "--seq-len", "64"], cpu=True).job
    assert small is not None
    cluster = wb.Cluster.rented("h100", gpus=4, nodes=2)
    strategy = wb.Strategy.parse("fsdp4-tp2", 8)
    described = wb.Job(workload=small.workload, strategy=strategy, cluster=cluster)
    made = export_request.export(described, "skypilot", provider="nebius").job
    assert (made.script, made.strategy, made.gpu) == ("gpt", strategy, "h100-sxm")
    assert (made.nodes, made.processes_per_node) == (2, 4)
    assert "--seq-len 64" in " ".join(made.arguments)
    script = tmp_path / "train.py"
    script.write_text("")
    own = export_request.export(
        str(script), "accelerate", job=described, address="a", arguments=("--mine",)
    )
    assert own.job.arguments == ("--mine",)
    with pytest.raises(UsageError, match="seq len 8, not 64"):
        export_request.export("gpt", "slurm", job=described, arguments=("--seq-len", "8"))
    with pytest.raises(UsageError, match="says nodes itself"):
        export_request.export(described, "slurm", nodes=3)
    with pytest.raises(UsageError, match="max_hours must be above 0"):
        export_request.export(described, "slurm", max_hours=0)


def test_code_goes_along_as_it_is_and_a_key_in_it_is_told(tmp_path: Path) -> None:
    code = (
        "import helper\n"
        "authorization = helper.build(key=lambda one: one[0], token=helper.read())\n"
        'headers = {"Authorization": f"Bearer {authorization}"}\n'
        f'pinned = dict(revision="{"ab12cd34ef" * 4}")  # key===value\n'
    )
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "helper.py").write_text("def build(**_):\n    return 1\n")
    one = job(script=str(tmp_path / "train.py"))
    for engine in ("accelerate", "kubeflow"):
        made = export(one, engine)
        assert not [note for note in made.notes if "secret" in note and "line" in note]
        made.write(tmp_path / engine)
        if engine == "kubeflow":
            data = yaml.safe_load((tmp_path / engine / "files.yaml").read_text())["data"]
            assert code in data.values()
        else:
            assert (tmp_path / engine / "code" / "train.py").read_text() == code
    (tmp_path / "train.py").write_text(code + f'api_key = "{SECRET}"\n')
    made = export(one, "kubeflow")
    assert SECRET not in made.files["files.yaml"]
    assert any("code/train.py, line 5" in note and "config map" in note for note in made.notes)
    copied = export(one, "accelerate")
    assert any("code/train.py, line 5" in note and "as it is" in note for note in copied.notes)
