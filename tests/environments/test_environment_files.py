"""The files that cannot be run here are at least read: Dockerfile, shell scripts, Makefile."""

import ast
import re
import shutil
import subprocess

import pytest

from tests.environments.tiny_project import ENVIRONMENTS, ROOT

SHELL_SCRIPTS = [*sorted(ENVIRONMENTS.glob("*.sh")), ROOT / ".ci/run"]


def instructions(text):
    """[(KEYWORD, argument)] of a Dockerfile: comments dropped, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in filter(str.strip, joined.splitlines()):
        keyword, _, rest = line.partition(" ")
        found.append((keyword.upper(), rest.strip()))
    return found


@pytest.fixture(scope="module")
def docker():
    return instructions((ENVIRONMENTS / "Dockerfile").read_text())


def of(docker, keyword):
    return [rest for found, rest in docker if found == keyword]


def test_every_instruction_is_one_that_docker_knows(docker):
    known = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK"}
    known |= {"RUN", "SHELL", "USER", "VOLUME", "WORKDIR"}
    assert {keyword for keyword, _ in docker} <= known


def test_the_base_image_is_an_argument_with_an_exact_tag(docker):
    assert of(docker, "FROM") == ["${BASE_IMAGE}:${BASE_TAG}"]
    defaults = dict(rest.split("=", 1) for rest in of(docker, "ARG") if "=" in rest)
    assert re.search(r"\d+\.\d+", defaults["BASE_TAG"])
    assert "latest" not in defaults["BASE_TAG"]
    assert docker.index(("FROM", "${BASE_IMAGE}:${BASE_TAG}")) == 2, (
        "both arguments stand before it"
    )


def test_it_does_not_run_as_root(docker):
    users = of(docker, "USER")
    assert users
    assert users[-1] not in {"root", "0"}
    keywords = [keyword for keyword, _ in docker]
    assert keywords.index("USER") < keywords.index("ENTRYPOINT") < keywords.index("CMD")
    assert "WORKBENCH_UID=1000" in of(docker, "ARG")


def test_apt_leaves_nothing_behind(docker):
    runs = [rest for rest in of(docker, "RUN") if "apt-get install" in rest]
    assert runs
    for run in runs:
        assert "apt-get update" in run
        assert "--no-install-recommends" in run
        assert "rm -rf /var/lib/apt/lists/*" in run


def test_tini_is_process_one(docker):
    (entry,) = of(docker, "ENTRYPOINT")
    assert ast.literal_eval(entry)[0] == "/usr/bin/tini"
    assert "tini" in next(rest for rest in of(docker, "RUN") if "apt-get install" in rest)


def test_the_command_is_a_list_and_exists(docker):
    (command,) = of(docker, "CMD")
    path = ROOT / ast.literal_eval(command)[0].removeprefix("/opt/workbench/")
    assert path.stat().st_mode & 0o111, "it must be executable"


def test_there_is_a_health_check_that_gives_up_in_time(docker):
    (check,) = of(docker, "HEALTHCHECK")
    assert "--timeout=5s" in check
    assert "--max-time 4" in check


def test_it_uses_the_same_set_up_as_everything_else(docker):
    assert any("environments/setup_venv.py" in rest for rest in of(docker, "RUN"))
    assert not any(re.search(r"\bpip3? install", rest) for rest in of(docker, "RUN"))


def test_no_secret_and_no_open_door():
    for file in [ENVIRONMENTS / "Dockerfile", ENVIRONMENTS / "docker-start.sh"]:
        code = "\n".join(
            line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")
        )
        assert not re.search(r"(?i)(token|password|secret|api_key)\s*=\s*\S", code.replace("*token=*", "").replace("*password=*", "").replace("-e JUPYTER_TOKEN=…", "")), file  # fmt: skip
        assert not re.search(r"--\S*(allow_origin|disable_check_xsrf|allow-root)", code), file


def test_what_is_copied_into_the_image_is_let_through(docker):
    ignore = (ENVIRONMENTS / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignore
    for copy in of(docker, "COPY"):
        sources = [word for word in copy.split()[:-1] if not word.startswith("--")]
        for source in sources:
            assert f"!{source.removeprefix('./')}" in ignore
            if source != "notebooks":  # see the next test
                assert (ROOT / source).exists()


def test_the_notebooks_that_the_image_starts_with_are_there():
    if not any((ROOT / "notebooks").glob("*.ipynb")):
        pytest.skip("this checkout has no notebooks yet; the image cannot be built without them")
    assert (ROOT / "notebooks/00_start_here.ipynb").is_file()


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_are_clean(script):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed (Debian: apt-get install shellcheck)")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert script.read_text().splitlines()[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in script.read_text()
    assert script.stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--into-srever",), "unknown option --into-srever"),
        (("--dir",), "--dir needs a value"),
        (("--dir", "/tmp"), "no checkout at /tmp"),
    ],
)
def test_pod_start_says_what_is_wrong(arguments, word):
    done = subprocess.run(
        ["bash", ENVIRONMENTS / "pod-start.sh", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {1, 2}
    assert word in done.stderr
    assert "Next: " in done.stderr


def make(*arguments, **variables):
    argv = ["make", "--no-print-directory", *arguments]
    argv += [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_alone_lists_the_targets():
    listed = re.findall(r"(?m)^  make ([\w-]+)", make())
    (phony,) = re.findall(r"(?m)^\.PHONY: (.*)$", (ROOT / "Makefile").read_text())
    assert sorted(listed) == sorted(phony.split())
    assert {"help", "venv", "demo", "lab", "test"} <= set(listed)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("demo", ["environments/setup_venv.py\n", "/workbench demo"]),
        (
            "test",
            [
                "--extras train,lab,dev,deepspeed,lowbit,finetune,image,keras,trackers,notify,export,sweep,storage,agents\n",
                "-m pytest",
            ],
        ),
        ("check", ["ruff check", "ruff format --check", "pyright", "tests/test_architecture.py"]),
        ("bench", ["-m tests.benchmarks"]),
        (
            "lab",
            [
                "environments/setup_venv.py\n",
                "-m jupyterlab",
                "--ip=127.0.0.1",
                # in the address that is printed, for a machine without a browser
                "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb",
            ],
        ),
    ],
)
def test_what_a_target_would_run(target, words):
    printed = make("-n", target, PYTHON="python3.99", PYTEST_ARGS="-k x")
    assert printed.startswith("python3.99 environments/setup_venv.py")
    for word in words:
        assert word in printed
    assert "token" not in printed


def test_the_image_and_the_pods_get_what_make_lab_gets(docker):
    """One default, in the script: neither of them names extras of its own."""
    assert "EXTRAS=" in of(docker, "ARG")
    (setup,) = [rest for rest in of(docker, "RUN") if "setup_venv.py" in rest]
    assert '${EXTRAS:+--extras "${EXTRAS}"}' in setup
    assert re.search(r"(?m)^extras=\(\)$", (ENVIRONMENTS / "pod-start.sh").read_text())
    assert "--extras" not in make("-n", "venv") + make("-n", "lab") + make("-n", "demo")


def test_the_environment_can_lie_outside_the_checkout():
    printed = make("-n", "demo", WORKBENCH_VENV="/elsewhere/venv")
    assert "/elsewhere/venv/bin/workbench demo" in printed


def test_the_entry_script_parses_on_an_old_python():
    """So that an old Python prints the message and not a syntax error."""
    ast.parse((ENVIRONMENTS / "setup_venv.py").read_text(), feature_version=(3, 4))
