# Each target installs what it needs into .venv first; `make help` lists them.
N ?= 2          # ranks of `make bench`, `make test-one-gpu` and `make test-torch`
ARGS ?=         # more arguments: make bench ARGS="all_reduce -e 1M", make test ARGS="-k conformance"
TAG ?=          # of `make release`: checked against the version
MODE ?=         # --cpu or --gpu; found out when empty
# That run tests; more than four would share too few cores with the ranks. On GPUs one, whose ranks have them for themselves.
WORKERS ?= $(if $(wildcard /dev/nvidiactl),0,$(shell n=$$(nproc); echo $$((n < 4 ? n : 4))))

bin := .venv/bin
pytest = $(bin)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
native := $(shell find csrc tests/native -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')
.DEFAULT_GOAL := help
.PHONY: help setup build bench test test-all test-one-gpu test-torch test-engines hangs sanitize lint format docs release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv and install commlib with its tools; nothing changed, nothing done
	@launch/setup.sh $(MODE)

build: setup ## compile what changed of csrc/ into .venv: seconds for one file

bench: setup ## time every collective of this machine next to torch, and MPI or NCCL
	@mkdir -p build/bench
	$(if $(wildcard $(bin)/mpiexec),$(bin)/mpiexec -n $(strip $(N)) $(bin)/commlib bench,$(bin)/commlib bench -n $(strip $(N))) \
		-o build/bench/bench.json --plot build/bench/bench.png $(ARGS)

test: setup ## run the tests of the gate, but for those of `make lint`: minutes
	$(pytest) --ignore tests/test_layout.py --ignore tests/typed $(ARGS)

test-all: setup ## run every test, PyTorch's own, the engines' if .venv-engines is there, and the sanitizers: an hour
	$(pytest) -m "slow or not slow" --durations=50 $(ARGS)
	$(bin)/python -m tests.torch_suite -n 2
	@if [ -d .venv-engines ]; then $(MAKE) test-engines; else echo "not run: tests/engines, which 'make test-engines' installs for"; fi
	@launch/sanitize.sh

test-one-gpu: setup ## run what GPU tests can with N ranks on one GPU, 8 at most
	tests/gpu/one_gpu/run $(strip $(N)) $(bin)/python -m pytest tests/gpu $(ARGS)

test-torch: setup ## run PyTorch's own distributed tests on this backend and on gloo: ARGS="--device cuda" beside NCCL
	$(bin)/python -m tests.torch_suite -n $(strip $(N)) $(ARGS)

test-engines: ## install vLLM 0.32 for CPUs and the Python of SGLang 0.5.23 into .venv-engines; run their tests
	@launch/engines.sh
	.venv-engines/bin/python -m pytest -q -m "slow or not slow" tests/engines $(ARGS)

hangs: setup ## break 200 jobs at random: does `commlib debug` name the rank and the call? (about 9 minutes)
	cd benchmarks && ../$(bin)/python hangs.py --faults 200 $(ARGS)

sanitize: setup ## build with ASan, UBSan and TSan; stress and test under them (half an hour on two cores)
	@launch/sanitize.sh

lint: setup ## check style, types, native format, layers and layout
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/clang-format --dry-run -Werror $(native)
	$(bin)/lint-imports --no-logo
	$(bin)/python -m pytest -q tests/test_layout.py tests/typed

format: setup ## rewrite the sources in the project's format
	$(bin)/ruff check --fix-only .
	$(bin)/ruff format .
	$(bin)/clang-format -i $(native)

docs: setup ## write the generated pages, and of all pages a site with a search: build/site/index.html
	$(bin)/python docs/generate.py
	$(bin)/python -m sphinx -q -W --keep-going -c docs -d build/site-cache . build/site
	@echo wrote build/site/index.html

release: setup ## build sdist and wheel into dist/; install the wheel into an empty environment and test it
	@launch/release.sh $(TAG)

clean: ## remove what was built and cached; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .venv/commlib-setup.sha256
	find commlib tests docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
