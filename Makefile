# What a person types. Every environment is made here; nothing installed by hand counts.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
TORCH ?= torch==2.13.0
TENSORFLOW ?= tensorflow-cpu==2.21.* tf-keras==2.21.*
export OMP_NUM_THREADS ?= 1
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Many images set it. Nothing here is compiled when it is installed: each process would compile TensorFlow anew, for 15 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo lab test test-fast test-newest-torch test-pythons notebook-tools check bench docs pictures clean chromium

# First on PyTorch's own groups, which need no compiler; then on Horovod.
demo: $(DONE)/package
	$(BIN)/python scripts/demo.py --engine torch
	@[ -e $(DONE)/horovod ] || echo "Now with Horovod: TensorFlow, the tools and Horovod are installed, 12 to 15 minutes, once."
	$(MAKE) --no-print-directory $(DONE)/horovod
	$(BIN)/python scripts/demo.py --engine horovod

lab: $(DONE)/package
	$(BIN)/jupyter lab examples

test: $(DONE)/tools
	$(BIN)/python scripts/test.py

# What starts no daemon, kernel or browser: under 3 minutes on 2 cores.
test-fast: $(DONE)/tools
	$(BIN)/python -m pytest -q -m "not slow"

# What trains with PyTorch, on the newest one, with Horovod built for it: by hand, and before a release (15 minutes).
NEWEST := .venv-newest-torch
test-newest-torch: $(NEWEST)/.done
	$(NEWEST)/bin/python -c "import torch; print('torch', torch.__version__)"
	$(NEWEST)/bin/python -m pytest -q tests/unit/training/test_torch.py tests/unit/training/test_sharded.py \
	  tests/live/engine/test_apart.py tests/live/engine/test_native_groups.py tests/live/engine/test_sharded.py \
	  tests/live/engine/test_torch.py tests/live/engine/test_torch_distributed.py tests/live/engine/test_torchrun.py \
	  tests/live/training/test_accumulation.py tests/live/training/test_models.py tests/live/training/test_elastic.py

$(NEWEST)/.done: pyproject.toml jupyter_elastic/engines/horovod/build/hvd-cxx
	@rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install -q --upgrade pip setuptools wheel torch
	$(NEWEST)/bin/python -m pip install -q -e ".[dev]" $(PLUGINS)
	MAKEFLAGS= $(NEWEST)/bin/jupyter elastic admin build-horovod
	@touch $@

# What needs neither framework nor Horovod, and a cell run from the wheel, on the other Pythons that the package is for.
PYTHONS ?= python3.12 python3.13
test-pythons: $(foreach p,$(PYTHONS),.venv-pythons/$(p)/.done)
	@for p in $(PYTHONS); do echo "== $$p"; \
	  .venv-pythons/$$p/bin/python -m pytest -q -m "not horovod and not slow" tests/unit tests/property tests/sim && \
	  .venv-pythons/$$p/bin/python -m pytest -q tests/e2e/test_wheel.py || exit 1; done

.venv-pythons/%/.done: pyproject.toml
	@command -v $* >/dev/null || { echo "There is no $* here; install it, or name others: make test-pythons PYTHONS=..."; exit 1; }
	@rm -rf $(@D)
	$* -m venv $(@D)
	$(@D)/bin/python -m pip install -q -e ".[test]"
	$(@D)/bin/python -m pip install -q --no-deps $(PLUGINS)
	@touch $@

# Other notebook tools, as they come from their makers, in an environment of their own with this checkout in it.
NOTEBOOK_TOOLS := xeus-python jupyter-console ploomber-engine nbval myst-nb voila
notebook-tools: $(DONE)/tools .venv-tools/.done
	JUPYTER_ELASTIC_TEST_EVERYTHING=1 $(BIN)/python -m pytest -q tests/e2e/test_notebook_tools.py

.venv-tools/.done: $(DONE)/package
	@rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --no-compile $(NOTEBOOK_TOOLS) -e .
	@touch $@

check: $(DONE)/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p jupyter_elastic -p jupyter_elastic_ray
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_docstrings.py jupyter_elastic plugins
	$(BIN)/python scripts/screen_types.py --check
	$(BIN)/python scripts/markdown_lines.py

bench: $(DONE)/tools $(DONE)/peers
	$(BIN)/python -m benchmarks

docs: .venv-docs/.done
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --site-dir "$(or $(SITE),site)"

pictures: $(DONE)/tools
	$(BIN)/python scripts/pictures.py

clean:
	rm -rf $(VENV) $(NEWEST) .venv-peers .venv-docs .venv-pythons .venv-tools site

# A stage has its stamp when what it installed can be imported. One that was cut off begins anew: the first one with an
# empty environment, the others with what pip has finished. A changed pyproject.toml installs only what is new in it.
# Stages that need nothing of each other may run at the same time: `make -j2`.
FORGET_HALVES = $(BIN)/python scripts/half_installed.py
# Distributions of their own in this repository.
PLUGINS := -e plugins/jupyter-elastic-ray
# Python compiles what is imported; compiling all that is installed takes longer than the rest of it.
INSTALL := $(BIN)/python -m pip install -q --no-compile

$(DONE)/torch:
	@echo "Making .venv with torch: about 1 minute and 1 GB, once."
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip setuptools wheel
	$(INSTALL) "$(TORCH)" numpy
	$(BIN)/python -c "import torch"
	@mkdir -p $(DONE) && touch $@

FRONTEND := jupyter_elastic/widgets/frontend
SOURCES := $(wildcard $(addprefix $(FRONTEND)/,package-lock.json build.mjs schema/* style/* src/* src/*/* src/*/*/*))

# A first result needs little; for the tests all is installed at once, which is a minute sooner. The stamp says which.
WITH := $(if $(filter demo lab,$(MAKECMDGOALS)),".[examples]",".[dev]" $(PLUGINS))

$(DONE)/package: $(DONE)/torch pyproject.toml plugins/jupyter-elastic-ray/pyproject.toml $(SOURCES)
	@echo "Installing jupyter-elastic with its front end, JupyterLab and what the examples use: about 2 minutes."
	@rm -rf jupyter_elastic/labextension jupyter_elastic/widgets/static
	$(FORGET_HALVES)
	$(INSTALL) -e $(WITH)
	$(BIN)/python -c "import jupyter_elastic, ipykernel, jupyterlab, matplotlib, nbclient, sklearn"
	@echo '$(WITH)' > $@

# One that was installed and can't be imported is not kept: pip would take it for installed.
$(DONE)/tensorflow: | $(DONE)/package
	@echo "Installing TensorFlow: about 1 minute and 2 GB."
	$(FORGET_HALVES)
	-@$(BIN)/python -m pip uninstall -q -y $(foreach p,$(TENSORFLOW),$(firstword $(subst =, ,$(p)))) 2>/dev/null
	$(INSTALL) $(foreach p,$(TENSORFLOW),"$(p)")
	$(BIN)/python -c "import tensorflow, tf_keras"
	@touch $@

$(DONE)/dev: $(DONE)/tensorflow $(DONE)/package
	@grep -q dev $(DONE)/package || { echo "Installing what the tests need: about 2 minutes."; $(FORGET_HALVES); \
	  $(INSTALL) -e ".[dev]" $(PLUGINS); }
	@touch $@

$(DONE)/horovod: $(DONE)/dev jupyter_elastic/engines/horovod/build/hvd-cxx
	@echo "Building Horovod: 3 to 8 minutes, once."
	$(FORGET_HALVES)
	MAKEFLAGS= $(BIN)/jupyter elastic admin build-horovod
	@touch $@

# The browser tests run with both: they differ in how a click reaches a busy kernel.
$(DONE)/older-ipykernel: $(DONE)/dev
	@rm -rf $(VENV)/ipykernel-7.3
	$(INSTALL) --no-deps --target $(VENV)/ipykernel-7.3 "ipykernel==7.3.*"
	PYTHONPATH=$(VENV)/ipykernel-7.3 $(BIN)/python -c "import ipykernel"
	@touch $@

# What stands before JupyterHub in its tests.
PROXY := $(VENV)/configurable-http-proxy
$(DONE)/proxy: $(DONE)/dev
	@rm -rf $(PROXY)
	$(BIN)/npm install --silent --prefix $(PROXY) configurable-http-proxy@5.3.0
	@touch $@

# What the tests' other machines are reached by. It is unpacked, not installed: that would open a port of this machine.
$(DONE)/sshd: $(DONE)/dev | chromium
	@rm -rf $(VENV)/sshd && mkdir -p $(VENV)/sshd/packages
	@{ apt-get update -q >/dev/null; cd $(VENV)/sshd/packages && apt-get download -q openssh-server libwrap0 >/dev/null && \
	  for p in *.deb; do dpkg -x "$$p" ..; done; } || echo "There are no packages of Debian's here: tests by SSH are skipped."
	@touch $@

# The cluster whose allocations the tests' other machines are: 4 MB, unpacked in a second.
$(DONE)/slurm: $(DONE)/sshd
	@rm -rf $(VENV)/slurm && mkdir -p $(VENV)/slurm/packages
	@{ cd $(VENV)/slurm/packages && apt-get download -q slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge \
	  libmunge2 libhwloc15 liblua5.1-0 >/dev/null && for p in *.deb; do dpkg -x "$$p" ..; done; } || \
	  echo "There are no packages of Debian's here: tests with Slurm are skipped."
	@touch $@

# CPython's own tests, those of executors among them, which a test runs with ours: 3 MB.
$(DONE)/testsuite: $(DONE)/sshd
	@rm -rf $(VENV)/testsuite && mkdir -p $(VENV)/testsuite/packages
	@{ cd $(VENV)/testsuite/packages && apt-get download -q libpython3.11-testsuite >/dev/null && \
	  for p in *.deb; do dpkg -x "$$p" ..; done; } || \
	  echo "There are no packages of Debian's here: CPython's tests of executors are skipped."
	@touch $@

$(DONE)/tools: $(DONE)/horovod $(DONE)/older-ipykernel $(DONE)/proxy $(DONE)/sshd $(DONE)/slurm $(DONE)/testsuite | chromium
	@touch $@

chromium:
	@command -v chromium >/dev/null || { echo "Installing Debian's chromium for the browser tests: about 1 minute."; \
	  apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -q chromium >/dev/null; }

# Peers that a benchmark leaves out where they can't be installed: torchft (BSD-3-Clause) and NVIDIA's resiliency
# extension (Apache 2.0; newer ones need glibc 2.39).
PEERS_IF_THERE ?= torchft==0.2.0 nvidia-resiliency-ext==0.4.1

$(DONE)/peers: Makefile
	@echo "Making .venv-peers with the peers that the benchmarks measure against: about 1 minute."
	@[ -e $@ ] || rm -rf .venv-peers
	[ -e $@ ] || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q "$(TORCH)" numpy ipyparallel ipykernel distributed joblib
	.venv-peers/bin/python -c "import torch, ipyparallel, ipykernel, distributed, joblib"
	@for p in $(PEERS_IF_THERE); do .venv-peers/bin/python -m pip install -q "$(TORCH)" $$p || \
	  echo "$$p can't be installed here; the benchmarks go without it."; done
	@mkdir -p $(DONE) && touch $@

# The site is made from text: neither the package nor a framework is installed for it.
.venv-docs/.done: pyproject.toml
	@echo "Making .venv-docs with what builds the site: about half a minute."
	@[ -e $@ ] || rm -rf .venv-docs
	[ -e $@ ] || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q --upgrade "pip>=25.1"
	.venv-docs/bin/python -m pip install -q --group docs
	@touch $@
