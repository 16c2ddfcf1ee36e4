# Everything runs from .venv, made on first use. A stamp in it differs from pyproject.toml when there is something to install.
# Tests compare in float32, so that they pass on processors with and without bfloat16 units: `FASTFORMERS_PRECISION=bf16 make test` tests the other format.
SHELL := /bin/bash
PY := .venv/bin/python
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 FASTFORMERS_PRECISION=$${FASTFORMERS_PRECISION:-fp32}
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: demo help test test-all test-slow test-lowest torture export readme docs docs-serve clean FORCE

demo: .venv/.demo           # the three stages, as settings.ini says, on text that is always there
	fastformers demo --force

# The notebooks, then the tests, two at a time: both always run, and what failed is named at the end.
# All that is quick, and one part in ten of what takes a second or longer: the next part after each commit.
test: WHICH = --part $$(git rev-list --count HEAD 2>/dev/null || echo 0)
test test-all test-slow: .venv/.dev
	@$(OFFLINE) $(PY) -W ignore tools/pages.py $(WHICH); pages=$$?; \
	$(OFFLINE) $(PY) -m pytest -n 2 --dist loadfile $(WHICH); tests=$$?; \
	cat .venv/failed-pages; exit $$((pages || tests))

help:                       # this list
	@grep -hoE '^[a-z-]+:.*#.*' $(MAKEFILE_LIST) | sed 's/:[^#]*#/\t/' | expand -t 14

test:                       # the notebooks and the tests, about seven minutes
test-all:                   # all parts; `make test-all WHICH=--seconds` stores what each takes
test-slow: WHICH = --slow   # the tutorials, every family and the tests that take minutes too

test-lowest: .venv-lowest/.dev  # the tests, with the lowest versions of the dependencies that pyproject.toml allows
	$(OFFLINE) .venv-lowest/bin/python -m pytest -n 2 --dist loadfile

torture: .venv/.dev         # processes killed at random moments; random texts, tables, recipes and damaged directories; about a quarter of an hour
	$(OFFLINE) $(PY) benchmarks/kills.py --kills 60
	$(OFFLINE) $(PY) benchmarks/fuzz.py

export: .venv/.dev          # notebooks -> modules
	nbdev-export && nbdev-clean

readme: .venv/.dev          # nbs/index.ipynb -> README.md
	$(PY) tools/readme.py

docs: .venv/.docs           # nbs/ -> a site in _docs/ that needs no network: open _docs/index.html
	$(PY) -W ignore tools/docs.py

docs-serve: docs            # the same at http://localhost:8000
	$(PY) -m http.server -b localhost -d _docs 8000

clean:                      # what was built; .venv, caches of downloaded models and runs stay
	rm -rf build dist *.egg-info _proc _docs .pytest_cache .hypothesis .venv/.dev .venv/.demo .venv/.docs .venv/*.log .venv-lowest
	-find fastformers nbs tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	python3 -m venv .venv

.venv/.%: .venv/bin/python FORCE    # the stamp is a copy: nbdev-export touches pyproject.toml without a change
	@cmp -s pyproject.toml $@ || { $(PY) -m pip install -q --disable-pip-version-check -e '.[$(if $(filter demo,$*),minilm,$*)]' && cp pyproject.toml $@; }

.venv-lowest/.dev: pyproject.toml   # `>=` of what the package needs becomes `==`; what only tests need comes in its newest version
	$$(command -v python3.11 || command -v python3) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -c "import tomllib; print(*(o.replace('>=', '==') for o in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']), sep='\n')" > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install -q --disable-pip-version-check -c .venv-lowest/lowest.txt -e '.[dev]' && touch $@
