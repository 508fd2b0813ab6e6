# Every target first brings the environment up to date; with nothing to do that takes under a second.
# PYTHON=python3.12 names another system Python, PYTEST_ARGS='…' goes to pytest, LAB_ARGS='…' to JupyterLab.

PYTHON ?= python3
PYTEST_ARGS ?=
LAB_ARGS ?=
SETUP = $(PYTHON) environments/setup_venv.py
VENV = $(abspath $(or $(WORKBENCH_VENV),.venv))/bin
# One store for demo and lab: the notebook finds the demo's run although it lies in notebooks/.
STORE = $(or $(WORKBENCH_STORE),$(CURDIR)/runs)
# What the environment's programs start by name (accelerate, workbench) must be its own. Not exported
# for all: the set-up must find the system's python3 even when .venv is broken.
RUN = PATH="$(VENV):$$PATH" $(VENV)
# JupyterLab refuses to run as root unless told; containers usually are.
ROOT_ARGS = $(shell test "$$(id -u)" -ne 0 || echo --allow-root)

.DEFAULT_GOAL := help
.PHONY: help venv wheelhouse demo lab pod test test-all check bench fit strategies recipe-strategies faults diagnose-grid engines gpu matrix soak lessons agents clean

help: ## list the targets (this text)
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-14s %s\n' "$$name" "$$what"; done

venv: ## make or repair .venv, nothing else
	@$(SETUP)

WHEELHOUSE = $(CURDIR)/wheelhouse
WHEELHOUSE_ARGS ?=
wheelhouse: ## gather wheels for a pod without a package index in wheelhouse/ (see environments/wheelhouse.md)
	@$(SETUP) --make-wheelhouse "$(WHEELHOUSE)" $(WHEELHOUSE_ARGS)

demo: venv ## train a small model here and show it live
	@WORKBENCH_STORE="$(STORE)" $(RUN)/workbench demo

lab: venv ## open the start notebook in JupyterLab (first free port from 8888, token on)
	@WORKBENCH_STORE="$(STORE)" $(RUN)/python -m jupyterlab --ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(ROOT_ARGS) $(LAB_ARGS)

# GPU=a100-80, GPUS=4: others. The rehearsal of an 8B run has an overheated and a lost GPU in it.
GPU ?= h100-sxm
GPUS ?= 8
REHEARSAL ?= --model llama-3-8b --gpu $(GPU) --gpus $(GPUS) --strategy fsdp --tokens 1B --usd-per-hour 20 --checkpoint-minutes 30 --speed 60 --fault throttle@20m:3 --fault gpu-lost@80m:5 --name pod
pod: venv ## open JupyterLab on simulated GPUs, with a rehearsed run on them (no GPU needed)
	@WORKBENCH_STORE="$(STORE)" $(RUN)/python -m workbench.rehearsing.driver --gpu $(GPU) --count $(GPUS) -- sh -c '"$(VENV)/workbench" rehearse $(REHEARSAL) --background && exec "$(VENV)/python" -m jupyterlab --ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(ROOT_ARGS) $(LAB_ARGS)'

# Three streams of tests, for 2 cores: many tests wait for processes. One that has nothing left takes
# tests of the others.
# WORKERS=0 for one stream in this process. What fails is not run again: a flake is a fault.
WORKERS ?= 3
PYTEST = $(RUN)/python -m pytest -n $(WORKERS) --dist worksteal
TEST_EXTRAS = train,lab,dev,deepspeed,lowbit,finetune,image,keras,trackers,notify,export,sweep,storage,agents
test: ## run the tests that a change needs (10 min on 2 cores)
	@$(SETUP) --extras $(TEST_EXTRAS)
	@$(PYTEST) -m 'not full' $(PYTEST_ARGS)

test-all: ## run every test: all matrices, notebooks, browser, Slurm, environments (75 min on 2 cores)
	@$(SETUP) --extras $(TEST_EXTRAS)
	@$(PYTEST) $(PYTEST_ARGS)

check: ## lint, format, types, architecture: what CI asks before the tests
	@$(SETUP) --extras train,lab,dev
	@$(RUN)/python -m ruff check .
	@$(RUN)/python -m ruff format --check .
	@$(RUN)/python -m pyright
	@$(RUN)/python -m pytest -q tests/test_architecture.py

engines: ## install SkyPilot, dstack and Kubeflow's API apart, for the tests of exports (3 min)
	@$(SETUP) --extras train,lab,dev
	@$(RUN)/python -m tests.engines.validators

# Other calculators, for the tables beside ours: apart from the environment, because one of
# them asks for an old transformers. Pinned, without their dependencies but those they import.
PEERS = llm-analysis==0.2.2 fire termcolor deepspeed==0.19.8 hjson msgpack py-cpuinfo einops

bench: ## measure the workbench itself
	@$(SETUP) --extras train,lab,dev
	@test -d .venv/peers || $(VENV)/python -m pip install --quiet --no-deps --target .venv/peers $(PEERS)
	@$(RUN)/python -m tests.benchmarks

fit: venv ## refit what no source gives, each source of published runs left out in turn (WRITE=1 renews it)
	@$(RUN)/python -m tests.accuracy.fit_memory $(if $(WRITE),--write)
	@$(RUN)/python -m tests.accuracy.fit $(if $(WRITE),--write)
	@$(RUN)/python -m tests.accuracy.regret
	@$(RUN)/python -m tests.accuracy.score_calibration --fit

BATTERY = $(CURDIR)/battery
gpu: ## measure everything on this host's GPU (9 min; again: goes on where it ended)
	@$(SETUP) --extras train,lab,dev,deepspeed,lowbit
	@$(RUN)/python -m tests.gpu.battery --minutes 9 --out "$(BATTERY)"

# A table that was cut off goes on where it ended; a finished one begins anew.
ROWS = $(CURDIR)/.strategies.jsonl
strategies: ## run every strategy on CPU ranks and renew tests/strategies.md (half an hour)
	@$(SETUP) --extras train,lab,dev,deepspeed,lowbit,keras
	@WORKBENCH_STRATEGY_ROWS="$(ROWS)" $(RUN)/python -m pytest -q tests/launch/test_strategies.py tests/launch/test_model_parallel.py
	@$(RUN)/python -m tests.launch.strategies_page "$(ROWS)" && rm "$(ROWS)"

RECIPE_ROWS = $(CURDIR)/.recipe-strategies.jsonl
recipe-strategies: ## run the strategies of recsys, expert_parallel and finetune_image and renew their table in tests/strategies.md (5 min)
	@$(SETUP) --extras train,lab,dev,deepspeed,image
	@WORKBENCH_STRATEGY_ROWS="$(RECIPE_ROWS)" $(RUN)/python -m pytest -q tests/launch/test_recipe_strategies.py
	@$(RUN)/python -m tests.launch.strategies_page "$(RECIPE_ROWS)" && rm "$(RECIPE_ROWS)"

FAULTS = $(CURDIR)/.faults.jsonl
faults: ## inject every fault on CPU ranks and renew tests/faults.md (quarter of an hour)
	@$(SETUP) --extras train,lab,dev,deepspeed,lowbit,keras,trackers
	@rm -f "$(FAULTS)"
	@WORKBENCH_FAULT_ROWS="$(FAULTS)" $(RUN)/python -m pytest -q tests/faults tests/diagnose tests/recover tests/security tests/launch/test_faults.py tests/launch/test_outcome.py tests/store tests/observe
	@$(RUN)/python -m tests.faults.matrix "$(FAULTS)" && rm "$(FAULTS)"

diagnose-grid: ## slow ranks in every strategy and phase; renew tests/diagnose/README.md (10 min on 2 cores)
	@$(SETUP) --extras train,lab,dev,deepspeed
	@$(RUN)/python -m tests.diagnose.grid

# Both go on where they were cut off.
CELLS = $(CURDIR)/.matrix
matrix: ## save a checkpoint in every layout, load it in every other; renew tests/checkpoints.md (19 CPU minutes)
	@$(SETUP) --extras train,lab,dev,deepspeed
	@$(RUN)/python -m tests.recover.matrix --folder "$(CELLS)" --page tests/checkpoints.md
	@rm -rf "$(CELLS)"

SOAK = $(CURDIR)/.soak
ROUNDS ?= 200
SEED ?= 1
PROPERTY_TESTS = $(shell grep -rl --include='test_*.py' hypothesis tests)
soak: ## 200 seeded rounds of kills, damage and resumes (19 CPU minutes, two beside each other), then new examples for the property tests (ROUNDS=, SEED=)
	@$(SETUP) --extras train,lab,dev,deepspeed
	@$(RUN)/python -m tests.recover.soak --rounds $(ROUNDS) --seed $(SEED) --streams 2 --folder "$(SOAK)"
	@rm -rf "$(SOAK)"
	@$(RUN)/python -m pytest -q --hypothesis-profile=soak -m 'not slow' $(PROPERTY_TESTS)

# Run in copies, so that the notebooks in the repository stay free of outputs; their links lead to pages.
LESSONS = $(CURDIR)/lessons
lessons: venv ## run every notebook and write it with its figures as a page in lessons/ (10 min on 2 cores)
	@mkdir -p "$(LESSONS)" && cp notebooks/*.ipynb notebooks/*.py "$(LESSONS)"
	@cd "$(LESSONS)" && sed -i 's/(\([0-9][0-9]_[a-z_]*\)\.ipynb)/(\1.html)/g' [0-9]*.ipynb
	@cd "$(LESSONS)" && WORKBENCH_STORE="$(LESSONS)/runs" $(RUN)/python -m jupyter nbconvert --execute --ExecutePreprocessor.timeout=600 --to html [0-9]*.ipynb
	@cd "$(LESSONS)" && rm -f [0-9]*.ipynb *.py

agents: venv ## renew environments/SKILL.md and llms.txt from the commands
	@$(RUN)/python -m workbench.cli.agents_pages

clean: ## delete .venv and caches; runs/ stays
	rm -rf .venv .ruff_cache .pytest_cache dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
