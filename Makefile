# `make train` and `make test`; the first call of either creates .venv. PYTHON=/path/to/python3.12 selects another
# Python. pip's own settings (index, proxy, cache) are respected.

VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --disable-pip-version-check -c constraints.txt
# pip is silent while it unpacks PyTorch, so a dot appears every second.
DOTS = (while sleep 1; do printf .; done) & dots=$$!; trap "kill $$dots" EXIT INT TERM;

# Time budget of `make train`.
MINUTES := 2

.PHONY: train test test-all check clean

train: $(VENV)/.installed
	@$(RUN) train.py name=first resume=auto minutes=$(MINUTES)

test: $(VENV)/.installed-dev
	@$(RUN) -m pytest -n logical --dist worksteal -m "promise or not slow"

test-all: $(VENV)/.installed-ci
	@$(RUN) -m pytest -n logical --dist worksteal

check: $(VENV)/.installed-ci
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@for system in linux darwin win32; do $(RUN) -m mypy --platform $$system --cache-dir .mypy_cache/$$system || exit 1; done
	@$(VENV)/bin/lint-imports
	@$(RUN) -m codespell_lib

clean:
	rm -rf $(VENV)

# Creating an environment twice is harmless, so this also repairs one whose installation was interrupted.
$(VENV)/.installed: pyproject.toml constraints.txt
	@python="$(PYTHON)"; \
	for candidate in $${python:-python3 python3.14 python3.13 python3.12 python3.11}; do \
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; \
	  then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "make: needs Python 3.11 to 3.14, found $$("$${python:-python3}" --version 2>/dev/null || echo none);" \
	    "make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  package="$$("$$found" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')"; \
	  echo "make: $$found lacks the modules venv and ensurepip; on Debian and Ubuntu: apt install $$package" >&2; \
	  exit 1; fi; \
	echo "installing into $(VENV); the first time this downloads PyTorch (sizes: README.md)"; \
	"$$found" -m venv $(VENV)
	@$(DOTS) $(INSTALL) -e . || { echo "make: installing failed; the lines above say why (no network? a proxy? pip's index?)" >&2; exit 1; }
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	@$(DOTS) $(INSTALL) -e '.[$*]' || { echo "make: installing failed; the lines above say why" >&2; exit 1; }
	@touch $@
