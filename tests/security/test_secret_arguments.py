"""No form of a secret among the arguments stays in a record; what is none stays readable."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import workbench as wb
from workbench.describe import catalog
from workbench.diagnose import offline
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.start.start import prepare
from workbench.launching.supervise import launcher_log
from workbench.store import measurements, secrets
from workbench.store.files import write_json_atomic
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.secrets import (
    HIDDEN,
    redact_arguments,
    redact_environment,
    secret_values,
)

VALUE = "Zx9-plainWord"  # no known shape: only where it stands tells
DRAWN = "9f8A7c6B5d4e3F2a1b0c"
BASIC = base64.b64encode(f"me:{VALUE}".encode()).decode()
PEM = f"-----BEGIN PRIVATE KEY-----\n{VALUE}\nMIIE{DRAWN}\n-----END PRIVATE KEY-----\n"

NAMES = [
    *("token", "hub_token", "hf-token", "hubToken", "access_token", "key", "api_key", "apiKey"),
    *("wandb_key", "wandb.key", "WANDB_API_KEY", "pat", "github_pat", "pwd", "db_pwd", "password"),
    *("passwd", "secret", "client_secret", "aws_secret_access_key", "private_key", "storage-key"),
    *("credentials", "auth_token", "passphrase", "openai_key", "license_key"),
    *("db_pass", "SMTP_PASS", "PGPASSWORD", "sshpass"),
]
FORMS = {
    "--name value": lambda name: [f"--{name}", VALUE],
    "--name=value": lambda name: [f"--{name}={VALUE}"],
    "-name value": lambda name: [f"-{name}", VALUE],
    "name=value": lambda name: [f"{name}={VALUE}"],
    "+name=value": lambda name: [f"+trainer.{name}={VALUE}"],
    "--set name=value": lambda name: ["--set", f"{name}={VALUE}"],
    "JSON": lambda name: ["--config", json.dumps({"a": [{name: VALUE}], "lr": 1})],
    "JSON in JSON": lambda name: ["--c", json.dumps({"inner": json.dumps({name: VALUE})})],
    "Python": lambda name: [f"--config={{'{name}': '{VALUE}', 'lr': 1}}"],
    "YAML": lambda name: [f"lr: 1, {name}: {VALUE}"],
    "YAML in braces": lambda name: ["--set", f"logger: {{{name}: {VALUE}}}"],
    "quoted, with a blank": lambda name: [f'{name}: "one {VALUE} two"'],
    "address": lambda name: [f"https://host.example/data?split=a&{name}={VALUE}&n=1"],
    "--url=address": lambda name: [f"--url=https://host.example:8080/?{name}={VALUE}#x"],
    "header": lambda name: ["--header", f"X-{name}: {VALUE}"],
    "--set=name=value": lambda name: [f"--set=trainer.{name}={VALUE}"],
    "--set=name: value": lambda name: [f"--set=logger.{name}: {VALUE}"],
    "set=logger=name=value": lambda name: [f"set=logger=my.{name}={VALUE}"],
    "--header=header": lambda name: [f"--header=X-{name}: {VALUE}"],
}
OTHERS = {
    "-p": ["-p", VALUE],
    "SAS": [f"https://a.blob.example/c?sv=2024-01-01&se=2027&sig={VALUE}%3D"],
    "signed address": [f"s3://b/x?X-Amz-Signature={VALUE}&X-Amz-Expires=9"],
    "key of an address": [f"https://maps.example/api?key={VALUE}"],
    "basic": ["--header", f"Authorization: Basic {BASIC}"],
    "basic alone": [f"Basic {BASIC}"],
    "bearer": [f"--headers=Authorization: Bearer {VALUE}"],
    "bearer in JSON": [json.dumps({"headers": {"Authorization": f"Bearer {VALUE}"}})],
    "password of an address": [f"--db=postgresql://me:{VALUE}@db.example/x"],
    "password with an @": [f"postgresql://me:a@{VALUE}@db.example:5432/x"],
    "password with a /": [f"--url=redis://:p/{VALUE}@host:6379/0"],
    "password of a user that is a key": [f"--to=s3://AKIA{'AB12' * 4}:{VALUE}@bucket/x"],
    "password of a user that is a token": [f"https://hf_{'aB12' * 6}:{VALUE}@h.example/r.git"],
    "key of NVIDIA": [f"nvapi-{DRAWN}{DRAWN}"],
    "token as the user": [f"git+https://{DRAWN}@git.example/r.git"],
    "service account": ["--sa", json.dumps({"type": "service_account", "private_key": PEM})],
    "PEM": [f"--pem={PEM}"],
    "Slack's address": [f"https://hooks.slack.com/services/T00/B00/{VALUE}"],
    "Discord's address": [f"--url=https://discord.com/api/webhooks/123/{VALUE}"],
    "unknown key": ["--lab_key", DRAWN],
    "unknown key in JSON": [json.dumps({"lab_key": DRAWN})],
}
TABLE = {
    **{
        f"{form}: {name}": make(name)
        for (form, make), name in itertools.product(FORMS.items(), NAMES)
        if not (
            name == "key" and "name" in form and "." in str(make("key"))
        )  # it may name a column
    },
    **OTHERS,
}
PLAIN = [
    *(
        ["--tokenizer", "gpt2"],
        ["--tokenizer_name=x/y"],
        ["--max_tokens", "512"],
        ["--key-dim", "64"],
    ),
    *(["--num_tokens=5"], ["--pad_token", "<pad>"], ["--token-dropout", "0.1"], ["-p", "8080"]),
    *(["-p", "2"], ["-p", "."], ["--sort-key", "length"], ["--image_key", "pixel_values"]),
    *(["--text_key=text"], ["--key-size=128"], ["--patience", "3"], ["--pattern=*.txt"]),
    *(["--author", "me"], ["--use_auth_token", "true"], ["--compat", "old"], ["--passes", "2"]),
    *(["--first-pass", "done"], ["--pass", "two"], ["--pass_at_k=8"], ["--bypass", "none"]),
    *(
        ["--header=name: value"],
        ["--keys", "a,b"],
        ["--keyboard=qwerty"],
        ["--public", "x"],
        ["--lr", "3e-4"],
        ["a.py"],
    ),
    *(["https://host.example:8080/path@v2?split=train&n=1"], ["--data=s3://bucket/a@b/c"]),
    *(["git@github.com:me/x.git"], ["--basic", "training loop"], ["Basic training"]),
    *(["--revision", "0123456789abcdef0123" * 2], ["--config", '{"lr": 1e-3, "key_dim": 64}']),
    *(["--optim.betas=[0.9,0.95]"], ["{'max_tokens': 5}"], ["--url=http://localhost:8000/v1"]),
]


@pytest.mark.parametrize("form", TABLE)
def test_no_form_of_a_secret_stays(form: str) -> None:
    redacted = redact_arguments(TABLE[form])
    text = "\n".join(redacted)
    assert f"{HIDDEN}]" not in text
    assert VALUE not in text
    assert DRAWN not in text
    assert BASIC.rstrip("=") not in text
    assert HIDDEN in text
    assert len(redacted) == len(TABLE[form])


def test_variables_are_read_as_arguments_are() -> None:
    text = json.dumps({"database": {"password": VALUE}, "retries": 3})
    told = redact_environment({"SETTINGS": text, "DSN": f"Server=x;Password={VALUE}", "LANG": "C"})
    assert VALUE not in str(told)
    assert json.loads(told["SETTINGS"])["retries"] == 3
    by_name = {"NGC_CLI_KEY": DRAWN, "SORT_KEY": "length", "FIRST_PASS": "done"}
    assert redact_environment(by_name) == {**by_name, "NGC_CLI_KEY": HIDDEN}
    assert redact_environment(dict.fromkeys(NAMES, VALUE)) == dict.fromkeys(NAMES, HIDDEN)
    assert told["LANG"] == "C"


@pytest.mark.parametrize("words", PLAIN, ids=lambda words: " ".join(words)[:40])
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert redact_arguments(words) == words


def test_what_was_hidden_is_hidden_wherever_it_is_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secrets, "_LEARNT", set())
    words = ["--pat", VALUE, f"https://h.example/?token={DRAWN}", "--lr", "1"]
    assert secret_values(words) == [VALUE, DRAWN]
    secrets.learn({}, secret_values(words))
    try:
        told = secrets.hide_known(f"the script said {VALUE} and {DRAWN}")
    finally:
        secrets.learn({})
        secrets.known_values.cache_clear()
    assert told == f"the script said {HIDDEN} and {HIDDEN}"


def test_no_file_of_a_prepared_run_has_a_secret_of_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()\n")
    words = [word for form in OTHERS.values() for word in form]
    paths, order = prepare(wb.request(script, words, cpu=True, processes=1, store=tmp_path / "r"))
    assert order["arguments"] == words
    for path in paths.directory.rglob("*"):
        text = path.read_text() if path.is_file() else ""
        assert not {one for one in (VALUE, DRAWN, BASIC) if one in text}, path


MESSAGES = {  # as an exception says it, between quotes and line ends that JSON escapes
    "a quoted address": f'GET "https://h.example/x?token={VALUE}" failed',
    "an address at a line's end": f"at https://h.example/x?token={VALUE}\nretrying",
    "a backslash after it": f"https://h.example/x?sig={VALUE}\\n",
    "a header in quotes": f'{{"Authorization": "Basic {BASIC}"}}',
    "a key without its end": f"-----BEGIN PRIVATE KEY-----\nMIIE{DRAWN}\nand so on",
}


@pytest.mark.parametrize("form", MESSAGES)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_stays_json_where_a_text_in_it_had_a_secret(form: str, indent: int | None) -> None:
    """exit.json and the view of such a run could not be read: it counted as interrupted."""
    document = {"message": MESSAGES[form], "steps": [1, 2.5, None], "next": "é\n"}
    written = secrets.hide_bytes(json.dumps(document, indent=indent).encode())
    assert written.count(b"\n") == (
        0 if indent is None else json.dumps(document, indent=2).count("\n")
    )
    read = json.loads(written)
    assert {**read, "message": ""} == {**document, "message": ""}
    assert HIDDEN in read["message"]
    assert not {one for one in (VALUE, DRAWN, BASIC) if one in read["message"]}


_FAILS = """
import os, sys
client = dict(api_key="{drawn}")
try:
    raise ValueError(f"refused: {{os.environ['HUB_TOKEN']}} and {{sys.argv[2]}}")
except ValueError as error:
    raise RuntimeError(f'401 at "https://h.example/x?token={value}"') from error
"""


def test_a_ranks_record_of_its_exception_has_no_secret(tmp_path: Path) -> None:
    """Of its variables, its arguments, addresses, and a line of its source."""
    for name in ("logs", "metrics", "control"):
        (tmp_path / name).mkdir()
    script = tmp_path / "train.py"
    script.write_text(_FAILS.format(drawn=DRAWN, value=VALUE))
    token, word = "variable-of-mine", "argument-of-mine"
    environment = {
        **{name: one for name, one in os.environ.items() if name != "WORKBENCH_RANK_PID"},
        "PYTHONPATH": str(SITE_FOLDER),
        "WORKBENCH_RUN_DIR": str(tmp_path),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "HUB_TOKEN": token,
    }
    words = ["--password", word]
    subprocess.run([sys.executable, script, *words], env=environment, check=False)
    text = RunPaths(tmp_path).rank_end(0).read_text()
    end = json.loads(text)
    assert not {one for one in (VALUE, DRAWN, token, word) if one in text}
    assert end["exception"] == f'RuntimeError: 401 at "https://h.example/x?token={HIDDEN}"'
    assert end["chain"][1]["exception"] == f"ValueError: refused: {HIDDEN} and {HIDDEN}"
    assert "train.py" in end["where"]
    assert "Traceback" in end["traceback"]


def test_findings_that_are_worked_out_again_quote_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that no one watched: they are read from its logs, which are the user's."""
    paths = wb.Store(tmp_path).create("failed")
    write_json_atomic(paths.run, {"run": "failed", "processes": 1, "device": "cpu"})
    told = Finding(kind="x", evidence=f"at s3://u:{VALUE}@h/x", cause=VALUE, next="", confidence=1)
    monkeypatch.setattr(offline, "diagnose_offline", lambda _: [told])
    monkeypatch.setattr(secrets, "known_values", lambda: frozenset({VALUE}))
    (finding,) = offline.diagnose(paths)
    assert (finding.evidence, finding.cause) == (f"at s3://{HIDDEN}@h/x", HIDDEN)


@pytest.mark.parametrize("part", ["x", "a_", "a.b-", "1-", "é", "a='", "a "])
def test_a_long_argument_is_read_in_time(part: str) -> None:
    """A picture in base 64 is one word of that length; it was tried from each of its letters."""
    text = part * (60_000 // len(part))
    began = time.process_time()
    assert redact_arguments([text, f"{text} token={VALUE}"])[1].endswith(f"token={HIDDEN}")
    secrets.hide_failure({"message": text}, [])
    assert time.process_time() - began < 1.0


def called(words: list[str], how: str) -> str:
    """As Accelerate's launcher ends; `how` its process did."""
    error = subprocess.CalledProcessError(1, words)
    head = "Traceback (most recent call last):\n    raise subprocess.CalledProcessError(\n"
    return f"{head}subprocess.CalledProcessError: {error}\n".replace(
        "returned non-zero exit status 1", how
    )


@pytest.mark.parametrize(
    "how", ["returned non-zero exit status 3", "died with <Signals.SIGBUS: 7>"]
)
def test_the_launchers_last_words_name_no_secret_argument(how: str, tmp_path: Path) -> None:
    path = tmp_path / "launcher.log"
    words = [*(word for form in OTHERS.values() for word in form), "it's", "--lr", "1"]
    before = called(["/python", "first.py", f"--token={VALUE}"], how)  # of an attempt before it
    path.write_text(called(["/python", "train.py", *words], how))
    launcher_log.hide_command(path)
    hidden = path.read_text()
    assert not {one for one in (VALUE, DRAWN, BASIC) if one in hidden}
    assert how in hidden
    assert "\"it's\", '--lr', '1']" in hidden
    assert hidden.startswith("Traceback")
    plain = called(["/python", "train.py", "--lr", "1"], how)
    path.write_text(before + plain)
    launcher_log.hide_command(path)
    assert path.read_text() == before + plain  # the last alone: each attempt's end is looked at
    launcher_log.hide_command(tmp_path / "none")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="link"):
        launcher_log.hide_command(tmp_path / "link")


@pytest.mark.slow
def test_the_log_of_a_launcher_that_failed_has_no_secret_argument(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(3)\n")
    words = [f"--api_key={VALUE}", "--lr", "1"]
    run = wb.launch(script, words, cpu=True, processes=1, store=tmp_path / "runs")
    assert run.wait(120) == "failed"
    text = (run.directory / "logs" / "launcher.log").read_text()
    assert f"'--api_key={HIDDEN}', '--lr', '1'" in text
    assert VALUE not in text
    assert "returned non-zero exit status 3" in text
    assert "code 3" in str(run.document | run.summary())


def test_a_measurement_keeps_no_secret_argument_and_is_found_by_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()\n")
    words = ["--api_key", VALUE, f"--url=https://me:{VALUE}@h.example/", "--batch_size", "8"]
    store, run = wb.Store(tmp_path / "runs"), tmp_path / "run"
    run.mkdir()
    workload = wb.Workload(model=catalog.model("llama-3-8b"), seq_len=128, micro_batch=8)
    made = measurements.Measurement(
        script=str(script), arguments=tuple(words), workload=workload, batch_value=8
    )
    kept = measurements.keep(store, made, run)
    for path in (kept, *run.iterdir()):
        assert VALUE not in path.read_text()
    found = measurements.find(store, script, [*words[:-1], "16"])
    assert found is not None
    assert found.workload.micro_batch == 16
    assert measurements.find(store, script, ["--api_key", "another", *words[2:]]) is None
