"""Tab in a real bash: the script that `workbench completion bash` prints, and what it offers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.widgets.sample_runs import SampleRun

# As bash does it: the line is split into words, and the function sets what may follow.
PRESS = """
source <(workbench completion bash)
COMP_WORDS=($LINE) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
[[ $LINE == *" " ]] && COMP_WORDS+=("") && COMP_CWORD=$((COMP_CWORD + 1))
_workbench_completion workbench
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def tab(tmp_path: Path):
    SampleRun(tmp_path / "runs", "gpt-ddp").write(5, phase="ended", outcome="succeeded")
    SampleRun(tmp_path / "runs", "gpt-fsdp").write(5, phase="ended", outcome="succeeded")
    SampleRun(tmp_path / "other", "far").write(5, phase="ended", outcome="succeeded")
    command = tmp_path / "workbench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m workbench.cli "$@"\n')
    command.chmod(0o755)

    def press(line: str) -> list[str]:
        own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LINE": line}
        environment = {**os.environ, **own, "WORKBENCH_STORE": str(tmp_path / "runs")}
        done = subprocess.run(
            ["bash", "-c", PRESS], capture_output=True, text=True, check=True, env=environment
        )
        assert done.stderr == ""
        return done.stdout.split()

    return press


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("workbench lau", ["launch"]),
        ("workbench queue mo", ["move"]),
        ("workbench show gpt-", ["gpt-ddp", "gpt-fsdp"]),
        ("workbench show --store {folder}/other f", ["far"]),
        ("workbench compare gpt-ddp gpt-f", ["gpt-fsdp"]),
        ("workbench memory --recompute ", ["none", "selective", "full"]),
        ("workbench launch gpt --strategy fsdp", ["fsdp", "fsdp-grad-op"]),
        ("workbench memory --model llama-3.1-4", ["llama-3.1-405b"]),
        ("workbench plan --gpu h2", ["h200-sxm", "h20", "h200-nvl"]),
        ("workbench show --store {folder}/nowhere f", []),
    ],
)
def test_what_tab_offers(tab, tmp_path, line, offered):
    assert sorted(tab(line.format(folder=tmp_path))) == sorted(offered)


def test_each_shell_has_a_script(command):
    for shell in ("bash", "zsh", "fish"):
        done = command("completion", shell)
        assert (done.code, done.err) == (0, "")
        assert "_WORKBENCH_COMPLETE" in done.out
    assert command("completion", "csh").code == 2
