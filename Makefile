# Two commands are all a new machine needs: `make demo` and `make test`. Both use an environment in .venv with the tested
# versions of constraints.txt, and install there only what they need.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP  := $(VENV)/.kernels
DEV    := $(STAMP) $(VENV)/.installed-dev
KERNELS := $(shell find src/feedmill/kernels tools/kernels -name '*.py' -o -name '*.c')
# Half as many processes again as cores: a fifth of their time, tests wait for what they have started.
JOBS   ?= $(shell getconf _NPROCESSORS_ONLN | awk '{print int($$1 * 3 / 2 + 0.5)}')
# A test that hangs is named, with what its threads are at, and the others go on: ten times what any takes on a busy
# machine. Where that does not end it, as it hangs outside Python, its process is ended, and with it the run.
HANGS  := --timeout 600 --timeout-method signal -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# A process takes whole files, the longest first: what the tests of a file share is made once. (That one process gives
# out each test by itself takes it longer, too: the time for that grows with the square of their number.)
DIST   := --dist loadfile --no-loadscope-reorder

# Python's compiled modules are kept, as images for containers often ask not to do: each of the many processes of the demo
# and of the tests would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-quick test-all durations lint docs bench bench-peers clean

$(VENV)/.installed: pyproject.toml constraints.txt setup.py
	@echo "== making the environment $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "feedmill needs Python 3.11 or newer, this is " + sys.version)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --no-compile 'setuptools>=77' ziglang  # Python compiles what is imported: a tenth of all files
	@$(PIP) --no-compile --no-build-isolation -e '.[media,tokenize,web]'
	@touch $@

$(STAMP): $(VENV)/.installed $(KERNELS)
	@$(BIN)/python tools/kernels/build.py > /dev/null
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "== adding what the tests need to $(VENV) (a minute the first time)"
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## the main job end to end, on data that every machine has
	@$(BIN)/feedmill demo --output demo-out

# A process of the tests that crashes ends the run: pytest-xdist waits for ever for the one that takes its place.
test: $(DEV)  ## every fast test, in parallel; `pytest` alone and test-all draw new examples each time
	@echo "== running the tests"
	@$(BIN)/python -m pytest -n $(JOBS) $(DIST) -m 'not slow' --hypothesis-profile=repeatable --max-worker-restart 0 $(HANGS)

test-quick: $(DEV)  ## the tests that took least when they were last timed, and one of each kind: for every commit
	@$(BIN)/python -m pytest -n $(JOBS) $(DIST) -m 'not slow' --hypothesis-profile=quick --max-worker-restart 0 $(HANGS) --quick

durations: $(DEV)  ## time every fast test again, for test-quick and the order of test: on a machine that does nothing else
	@$(BIN)/python -m pytest -n $(JOBS) $(DIST) -m 'not slow' --hypothesis-profile=repeatable --max-worker-restart 0 --record-durations

test-all: $(DEV)  ## the slow ones too
	@$(BIN)/python -m pytest -n $(JOBS) $(DIST)

lint: $(DEV)
	@echo "== ruff, mypy, and pyright over the samples of the documentation"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python tests/typecheck.py

$(VENV)/.installed-docs: $(DEV)
	@$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/.installed-docs  ## the site, in build/docs/index.html; a warning is an error
	@$(BIN)/python docs/diagrams/draw.py && $(BIN)/python docs/notebooks/make.py && $(BIN)/python docs/schemas/write.py && $(BIN)/python docs/migration/write.py
	@$(BIN)/python docs/formats/write.py && $(BIN)/python docs/reference/write.py
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "== build/docs/index.html"

bench: $(DEV)  ## beside the peers; see benchmarks/README.md
	@$(BIN)/python benchmarks/run.py

bench-peers: $(DEV)  ## environments of the peers of benchmarks/peers.toml, all of them or PEERS="energon dolma"
	@$(BIN)/python -m benchmarks.peers make $(PEERS)

clean:
	rm -rf $(VENV) build demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
