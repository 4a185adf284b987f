# One environment, .venv: make lab installs what the lessons need, the other targets add to it what
# tests, builder, book and grader need besides. Neither takes anything away.
PYTHON ?= python3
PORT ?= 8888
TESTS ?= tests notebooks solutions
WORKERS ?= 3
RUN = .venv/bin/python
export PYTHON TORCH WHEELHOUSE HASHES
# Kernels forked from one that has torch imported, for make lab, make test and whatever else starts
# some. The variable is jupyter_client's own and does the same outside of make.
ifeq ($(DLSYS_WARM),1)
export JUPYTER_DEFAULT_PROVISIONER_NAME = dlsys-warm
endif

.PHONY: help lab hub test nightly new try finish build book book-serve booklet site versions bench
.PHONY: bench-silent
.PHONY: diffs incidents picture record sweep colab newest lock setup setup-lab wheel wheelhouse gallery
.DEFAULT_GOAL := help

help:
	@echo "make lab         learn: set up, then JupyterLab on the start notebook"
	@echo "                 DLSYS_WARM=1 for kernels forked from a warm one (Linux)"
	@echo "                 PORT=8889, LAB_ARGS=--no-browser, PYTHON=python3.12"
	@echo "                 TORCH=cpu: no CUDA, three GB less; WHEELHOUSE=folder: no network"
	@echo "                 HASHES=off: from an index with builds of its own, files not compared"
	@echo "make hub         many learners on this machine, for trying: JupyterHub on PORT=8000"
	@echo "make test        set up, then run the tests; fresh records are believed, see"
	@echo "                 tools/nightly.py. TESTS=tests/test_setup.py for some, in full,"
	@echo "                 WORKERS=8 where there are more cores than two"
	@echo "make nightly     every test, no record believed; then the claims of three lessons under"
	@echo "                 fifty seeds, each night the next three, and right answers under seeds"
	@echo "                 of today: hours"
	@echo "make colab       lessons with Colab's versions, each from its file alone; LESSON=01 for one"
	@echo "make newest      the same with today's newest versions of everything"
	@echo "make new         start a trap, TRAP=05.7; NAME=rescale names its exercise's function"
	@echo "make try         all that a trap still lacks, in one table; TRAP=05.7"
	@echo "make finish      build and record a lesson, LESSON=05; may be stopped and called again"
	@echo "make build       lessons/ -> notebooks, worksheets, solutions; LESSON=01 for one, and"
	@echo "                 DRAFT=1 for one that is not finished, into drafts/. What did not change"
	@echo "                 keeps its outputs; AGAIN=1 runs it all the same"
	@echo "make book        the website, in book/_build/html; make book-serve shows it"
	@echo "make booklet     a stage of the built book as a PDF, LESSON=08; CODE=1 with folded code"
	@echo "make site        the book as a version of a website, in site/; FOLDER=v1.0 for a release,"
	@echo "                 none for its root; make versions lists what a website holds"
	@echo "make picture     README's moving picture, of the built book"
	@echo "make sweep       every claim under seeds, threads and instruction sets, where its record"
	@echo "                 is stale; LESSON=01 for one, SWEEP_ARGS='--seeds 50' or --all"
	@echo "make record      measure the GPU sections on this machine's CUDA device"
	@echo "make diffs       run the changes of dlsys review-diff that are not recorded; two minutes"
	@echo "make incidents   run the incidents of dlsys incident that are not recorded; three minutes"
	@echo "make gallery     train the gallery's program once with each fault: what is not recorded of"
	@echo "                 today's program; half an hour of CPU for all of it"
	@echo "make bench       how fast, on which machine: measured, recorded, written to a page"
	@echo "make bench-silent  SilentTraps: score the baselines on every case; AGAIN=1 from the beginning"
	@echo "make lock        requirements.lock from the packages installed in .venv, and the hashes of"
	@echo "                 their files from the package index"
	@echo "make wheel       the package with worksheets and lessons as one file, in dist/; next to"
	@echo "                 it dlsys-watch, which runs without the course"
	@echo "make wheelhouse  all packages as files, for machines without network"
	@echo "make setup       only the set-up, for all targets; delete .venv to start it afresh"

setup:
	@sh tools/setup.sh

setup-lab:
	@sh tools/setup.sh lab

lab: setup-lab
	@$(RUN) -m dlsys lab --port $(PORT) -- $(LAB_ARGS)

hub: setup-lab
	@$(RUN) -m deploy.hub.local $(if $(filter command line environment,$(origin PORT)),--port $(PORT)) $(HUB_ARGS)

# Progress goes to a throw-away folder: a test run must not touch the learner's own. Lessons and
# solutions are run by nbval in the same go. Threads that wait must sleep: workers share the cores.
# Some eighty kernels are started, each of which would import torch for three seconds: they are
# forked, but for those of JupyterLab, which start as they do under make lab.
# Three workers for two cores: a worker waits a fifth of its time for a browser or a sandbox.
# Compiled modules are kept, whatever the environment says of it: hundreds of processes start.
WARM = $(if $(filter Linux,$(shell uname)),JUPYTER_DEFAULT_PROVISIONER_NAME=dlsys-warm DLSYS_WARM_IDLE=60)
test: setup
	@progress=$$(mktemp -d) && trap 'rm -rf "$$progress"' EXIT && \
	DLSYS_PROGRESS="$$progress" PYTHONDONTWRITEBYTECODE= \
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 MPLBACKEND=Agg $(WARM) \
	$(RUN) -m pytest -p tools.suite -p tools.nightly -n $(WORKERS) --dist loadscope -rs --nbval-lax --nbval-cell-timeout=300 $(TESTS)

# A variable of the command line is in the environment of what it starts. The first test that needs
# a page with explorers computes all frames: minutes, and longer than any other test may take.
nightly:
	@$(MAKE) --no-print-directory test DLSYS_NIGHTLY=1 TESTS="-o faulthandler_timeout=3600 $(TESTS)"
	@$(MAKE) --no-print-directory sweep SWEEP_ARGS="--seeds 50 --nights 5"
	@$(SHARED) $(RUN) -m tools.fresh_seeds

# In an environment of its own, .colab or .newest, without the course: the first cell installs that.
colab newest: setup
	@MPLBACKEND= $(RUN) -m tools.elsewhere $@ $(LESSON)

build: setup
	@$(RUN) -m tools.build $(LESSON)$(if $(DRAFT), --draft)$(if $(AGAIN), --again)

new: setup
	@$(RUN) -m tools.new "$(TRAP)" $(NAME)

# Runs share the cores here, so threads that wait must sleep.
SHARED = DLSYS_PROGRESS=off OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
try: setup
	@$(SHARED) $(RUN) -m tools.try_trap "$(TRAP)"

finish: setup
	@$(SHARED) $(RUN) -m tools.finish "$(LESSON)"

book: setup
	@$(RUN) -m tools.book

book-serve: setup
	@$(RUN) -m tools.book --serve

booklet: setup
	@$(RUN) -m tools.booklet $(LESSON)$(if $(CODE), --code)

picture: setup
	@$(RUN) -m tools.moving_picture

# A release is a tag, and its pages stand in a folder of their own. The list needs no set-up.
site: setup
	@$(RUN) -m tools.book --site "$(FOLDER)"

versions:
	@$(PYTHON) tools/versions.py

bench: setup
	@$(RUN) -m benchmarks

bench-silent: setup
	@OMP_NUM_THREADS=1 $(RUN) -m benchmarks.silent $(if $(AGAIN),--again)

diffs: setup
	@OMP_NUM_THREADS=1 $(RUN) -m tools.diffs

incidents: setup
	@OMP_NUM_THREADS=1 $(RUN) -m tools.incidents

gallery: setup
	@OMP_NUM_THREADS=1 $(RUN) -m tools.gallery

# No set-up: a GPU machine has its own torch, often neither network nor room for another.
record:
	@PYTHONPATH=src $(firstword $(wildcard $(RUN)) $(PYTHON)) -m tools.record

sweep: setup
	@$(RUN) -m tools.sweep $(LESSON)$(if $(DRAFT), --draft) $(SWEEP_ARGS)

lock: setup
	@$(RUN) -m tools.lock

# An old build/ would go into the wheel, too.
wheel: setup-lab
	@rm -rf build && $(RUN) -m pip wheel -q --no-deps --no-build-isolation -w dist . ./src/dlsys_watch
	@rm -rf build src/dlsys_watch/build
	@ls dist/*.whl

wheelhouse: setup-lab
	@sh tools/setup.sh wheelhouse
