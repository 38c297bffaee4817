# make help lists the targets. demo and test do all their own set-up, as root on Debian 12; the others only build or report.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# sudo and fresh shells often lack these.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
# The version is stamped below; go's own stamping fails in a checkout that belongs to another user (sudo make).
export GOFLAGS := $(filter-out -buildvcs=%,$(GOFLAGS)) -buildvcs=false
# nvml.h marks functions as deprecated that go-nvml still binds: 60 warnings that nobody here can act on.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

JOBS := 2
MODULE := github.com/gpuledger/gpuledger
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X $(MODULE)/internal/version.Version=$(VERSION)
HOT_LIMIT := 5242880

FUZZTIME ?= 10s
TIME ?= 30m
SOAK ?= 4h
TORTURE_ROUNDS ?=
BENCHFLAGS ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test-gpu
test-gpu: ## what only a real GPU can show; a report for docs/gpu-results.md (root)
	@test/setup.sh demo
	@test/test-gpu.sh

.PHONY: demo
demo: ## the story on this machine, set-up included (root)
	@test/setup.sh demo
	@test/demo.sh

# Packages with tests that only exist when the marks of internal/failpoint are compiled in.
FAILPOINT_TESTS = $(shell grep -rlE --include='*_test.go' '^//go:build failpoint' internal runtime hook test 2>/dev/null | xargs -r dirname | sort -u | sed 's|^|./|')

.PHONY: test
test: ## everything of a node that needs root and no GPU, set-up included (root)
	@test/setup.sh test
	$(MAKE) --no-print-directory build peers
	go vet ./...
	test/rig/leftovers.sh go test -p $(JOBS) -count=1 -timeout 45m $$(go list ./... | grep -v '/test$$')
	test/rig/halves.sh ./test
	@for package in $(FAILPOINT_TESTS); do \
	  echo "go test -tags failpoint $$package"; \
	  test/rig/leftovers.sh go test -p $(JOBS) -tags failpoint -count=1 -timeout 45m "$$package"; \
	done

# Tests that make test has no time for (rig.More).
MORE := TestConfigureBesideNVIDIA|TestKilledAtAnyTime|TestMPSOutlivesUpgrades|TestMakeTestGPU|TestCampaign

.PHONY: test-more
test-more: ## what CI runs after make test: Kubernetes' module, the long tests, the demo, and the story through containerd 2.4 and Podman (root)
	@test/setup.sh test
	$(MAKE) --no-print-directory build peers
	go vet -tags e2e ./test/e2e
	go vet -C kube -p $(JOBS) ./...
	test/rig/leftovers.sh go test -C kube -p $(JOBS) -count=1 -timeout 45m ./...
	GPULEDGER_TEST_MORE=1 test/rig/leftovers.sh go test -p $(JOBS) -count=1 -timeout 45m -run '^($(MORE))$$' ./test ./test/campaign
	test/rig/leftovers.sh test/demo.sh
	E2E_ENTRIES=wrapper,configure,unjudged test/rig/leftovers.sh test/e2e/run.sh containerd2,podman

E2E ?= containerd,crio,podman,docker,kubernetes
.PHONY: e2e
e2e: ## the story through real engines and a real control plane, set-up included (root); E2E=containerd,crio,podman,docker,kubernetes
	@test/setup.sh e2e
	$(MAKE) --no-print-directory build kube peers
	test/rig/leftovers.sh test/e2e/run.sh $(E2E)

RUNC_SUITE ?= newest-v1,newest-v2,debian-v1,debian-v2
RUNC_FILES ?=
.PHONY: test-runc
test-runc: ## runc's own integration tests, through us and bare what does not pass, in some 20 minutes (root); RUNC_SUITE=newest-v1,debian-v2 RUNC_FILES=mounts.bats
	@test/setup.sh test-runc
	$(MAKE) --no-print-directory build
	test/rig/leftovers.sh test/runc/run.sh $(RUNC_SUITE) $(RUNC_FILES)

MUTANTS ?=
.PHONY: mutants
mutants: ## changes the guard's code a line at a time and runs its tests, for ten minutes (root); MUTANTS='-seed 7 -time 0 internal/admission'; other packages than admission, hostpath, request and edit by name
	@test/setup.sh test
	@mkdir -p .cache/bin && go build -p $(JOBS) -o .cache/bin/mutants ./test/mutants
	test/rig/leftovers.sh test/mutants/private.sh .cache/bin/mutants $(MUTANTS)

SIM ?= 1h
.PHONY: sim
sim: ## planted mistakes, then lives of a simulated node from fresh seeds, on all processors, for an hour; SIM=10m
	go test -p $(JOBS) -count=1 -timeout 0 -v ./test/sim -run TestPlanted
	go test -p $(JOBS) -count=1 -timeout 0 -v ./test/sim -run TestPlanted -rare
	go test -p $(JOBS) -count=1 -timeout 0 -v ./test/sim -run TestSeed -duration $(SIM) -first $$(date +%s)000

CRUN_SUITE ?= debian-v1,debian-v2
CRUN_FILES ?=
.PHONY: test-crun
test-crun: ## crun's own tests, through us and bare what does not pass, in some 5 minutes (root); CRUN_SUITE=debian-v1 CRUN_FILES=test_exec.py
	@test/setup.sh test-crun
	$(MAKE) --no-print-directory build
	test/rig/leftovers.sh test/crun/run.sh $(CRUN_SUITE) $(CRUN_FILES)

PODMAN_SUITE ?= crun-v1
PODMAN_FILES ?=
.PHONY: test-podman
test-podman: ## Podman's own system tests of containers, through us and bare what does not pass, in some 10 minutes (root); PODMAN_SUITE=runc-v2 PODMAN_FILES=075-exec.bats
	@test/setup.sh test-podman
	$(MAKE) --no-print-directory build
	test/rig/leftovers.sh test/podman/run.sh $(PODMAN_SUITE) $(PODMAN_FILES)

.PHONY: test-nvidia
test-nvidia: ## the tests of nvidia-container-runtime as a program, with NVIDIA's and with ours in its place, in half a minute (root)
	@test/setup.sh test-nvidia
	$(MAKE) --no-print-directory build peers
	test/rig/leftovers.sh test/nvidia/run.sh

CRIO_SUITE ?= runc-v1
CRIO_FILES ?=
.PHONY: test-crio
test-crio: ## CRI-O's own integration tests of containers, through us and bare what does not pass, in some 15 minutes (root); CRIO_SUITE=crun-v1 CRIO_FILES=ctr.bats
	@test/setup.sh test-crio
	$(MAKE) --no-print-directory build
	test/rig/leftovers.sh test/crio/run.sh $(CRIO_SUITE) $(CRIO_FILES)

.PHONY: test-critest
test-critest: ## cri-tools' validation of containerd, bare and through us, in some minutes (root)
	@test/setup.sh e2e
	$(MAKE) --no-print-directory build
	E2E_ENTRIES=critest test/rig/leftovers.sh test/e2e/run.sh containerd2,containerd1.7

.PHONY: build
build: ## bin/gpuledger, bin/gpuledger-runtime, bin/gpuledger-hook, bin/gpuledgerd and the proxies in bin/shim
	@test/setup.sh check-go
	go build -p $(JOBS) -trimpath -ldflags '$(LDFLAGS)' -o bin/gpuledger ./cmd/gpuledger
	@front/build.sh $$(go env GOARCH) cmd/gpuledger-runtime/front_linux_$$(go env GOARCH).s
	CGO_ENABLED=0 go build -p $(JOBS) -tags front -trimpath -ldflags '$(LDFLAGS) -E gpuledger_front' -o bin/gpuledger-runtime ./cmd/gpuledger-runtime
	CGO_ENABLED=0 go build -p $(JOBS) -trimpath -ldflags '$(LDFLAGS)' -o bin/gpuledger-hook ./cmd/gpuledger-hook
	CGO_ENABLED=0 go build -p $(JOBS) -trimpath -ldflags '$(LDFLAGS)' -o bin/gpuledgerd ./cmd/gpuledgerd
	@for hot in bin/gpuledger-runtime bin/gpuledger-hook; do \
	  size=$$(stat -c %s "$$hot"); \
	  [ "$$size" -le $(HOT_LIMIT) ] || { echo "$$hot has $$size bytes, more than the $(HOT_LIMIT) that a hot binary may have" >&2; exit 1; }; \
	done

	@shim/build.sh bin/shim

.PHONY: kube
kube: ## bin/gpuledger-kube, bin/kubectl-gpuledger and its other name, a module of their own in kube/
	@test/setup.sh check-go
	CGO_ENABLED=0 go build -C kube -p $(JOBS) -trimpath -ldflags '$(LDFLAGS)' -o ../bin/ ./cmd/...
	install packaging/kubectl-inspect-cgpu bin/

.PHONY: shim-test
shim-test: ## the shim alone: its stories, sanitizers and symbols (root)
	@test/setup.sh test
	go test -p $(JOBS) -count=1 ./internal/limits ./test/shim

.PHONY: shim-arm64
shim-arm64: ## the proxies for arm64 in bin/shim-arm64, and stories of theirs in an emulator (root)
	@test/setup.sh shim-arm64
	@shim/test/arm64.sh

.PHONY: bench-shim
bench-shim: ## what the shim adds to an allocation and to a load, at 1, 8 and 64 processes
	@shim/test/bench.sh

.PHONY: fakedriver
fakedriver: ## bin/fakedriver: a driver root with stand-in libcuda and libnvidia-ml, for inventory.driver_root
	@test/fakedriver/build.sh bin/fakedriver

.PHONY: bench
bench: ## ratios against bare runc and nvidia-container-runtime, in one run (root); BENCHFLAGS="-pairs 60 -markdown"
	@test/setup.sh bench
	@$(MAKE) --no-print-directory build peers
	@go build -p $(JOBS) -o bin/bench ./test/bench
	@bin/bench $(BENCHFLAGS)

.PHONY: bench-peers
bench-peers: ## beside peers, in some 8 minutes (root): NVIDIA's runtime, CDI of Podman and of containerd, and HAMi-core: HAMI_CORE=.../libvgpu.so; BENCHFLAGS="-pairs 60 -only Podman"
	@test/setup.sh bench-peers
	@$(MAKE) --no-print-directory build peers
	@test/engines/build.sh containerd-2
	@shim/test/peers.sh bin/peers/library
	@go build -p $(JOBS) -o bin/bench ./test/bench
	@bin/bench -peers -markdown $(BENCHFLAGS)

.PHONY: bench-scale
bench-scale: ## a node of 16 GPUs, 1,000 grants, 500 containers, 10,000 other processes and 5,000 mounts, at three sizes, in some 20 minutes (root); BENCHFLAGS="-parts 50,10"
	@test/setup.sh bench
	@$(MAKE) --no-print-directory build
	@gcc -static -Os -Wall -Wextra -o bin/sleepers test/bench/sleepers/sleepers.c
	@go build -p $(JOBS) -o bin/bench ./test/bench
	@bin/bench -only scale $(BENCHFLAGS)

# The peers are pinned by a module of their own, so that their requirements never move ours.
PEERS := nvidia-container-toolkit
.PHONY: peers
peers:
	@for peer in $(PEERS); do \
	  mkdir -p bin/peers && go build -C test/tools/$$peer -p $(JOBS) -trimpath -ldflags '-s -w' -o ../../../bin/peers/ tool; \
	done

.PHONY: bench-daemon
bench-daemon: ## what gpuledgerd costs with 1,000 and 4,000 GPU processes in real containers, in some minutes (root)
	@test/setup.sh bench
	test/rig/leftovers.sh go test -p $(JOBS) -run '^$$' -bench '^BenchmarkDaemon$$' -benchtime 1x -timeout 30m ./test

.PHONY: bench-cluster
bench-cluster: ## 100 nodes with 8 GPUs each and 1,000 claims against a real etcd, API server and scheduler, 64 claims at once on one node, and the extender of kube-scheduler, in some minutes (root); BENCHFLAGS="-nodes 10", or "-placing", or "-curve 50,100,250,500 -claims 200 -lone 20"
	@test/setup.sh bench
	@test/engines/build.sh etcd kubernetes
	@CGO_ENABLED=0 go build -C kube -p $(JOBS) -o ../bin/bench-cluster ./bench
	@unshare --mount --net --propagation private sh -c 'ip link set lo up && exec bin/bench-cluster $(BENCHFLAGS)'

.PHONY: pictures
figures: ## how the code is built: its size, its longest functions and lines, its largest types
	@go run ./test/figures

pictures: ## the status page in a headless browser, and the pictures of docs/pictures drawn anew (root)
	@test/setup.sh pictures
	go test -p $(JOBS) -count=1 -run '^TestInABrowser$$' ./internal/page
	PICTURES="$(CURDIR)/docs/pictures" test/rig/leftovers.sh go test -p $(JOBS) -count=1 -v -run '^TestPictures$$' ./test

.PHONY: test-monitoring
test-monitoring: ## alert rules, dashboard and metrics, by Prometheus' own promtool (root)
	@test/setup.sh test-monitoring
	go test -p $(JOBS) -count=1 ./internal/metrics
	test/rig/leftovers.sh go test -p $(JOBS) -count=1 -run '^TestMonitoring' ./test

.PHONY: packages
packages: ## deb and rpm for amd64 and arm64, and the image of the Kubernetes set-up, in dist/ (root, where a compiler is missing)
	@test/setup.sh packages
	@packaging/build.sh dist

.PHONY: release
release: ## everything a release has, in dist/: packages, repositories, images, chart, kubectl plugins, sums; RELEASE_KEY signs (packaging/release.sh)
	@test/setup.sh release
	@packaging/release.sh dist

.PHONY: test-packages
test-packages: ## two builds compared; their life in Debian, Ubuntu and rpm; docs/install.md typed in a booted Debian (root)
	@test/setup.sh test-packages
	@packaging/test.sh

.PHONY: test-systemd
test-systemd: ## MPS daemons, units of containers and the hook alone under a real systemd, in a Debian 12 of their own (root)
	@test/setup.sh test-systemd
	$(MAKE) --no-print-directory build
	@packaging/systemd.sh
	@packaging/units.sh
	@packaging/hook.sh

.PHONY: test-chart
test-chart: ## the chart with the real Helm: for each minor version of Kubernetes, then on a real control plane: install, enforce, uninstall and back (root)
	@packaging/minors.sh
	@packaging/chart.sh

.PHONY: test-quickstart
test-quickstart: ## docs/kubernetes-quickstart.md typed into a real cluster in a booted Debian 12, then an upgrade, a reboot in its middle, and the uninstall; some ten minutes (root)
	@test/setup.sh test-quickstart
	@packaging/quickstart.sh

.PHONY: test-setup
test-setup: ## the set-up of a cluster's node, ten times and back, on containerd and CRI-O in a booted Debian 12, in some minutes (root)
	@test/setup.sh test-packages
	$(MAKE) --no-print-directory build
	@packaging/setup.sh

.PHONY: model
model: ## grants, releases, failures and reboots against a model, 100,000 steps of each; make test takes a few hundred
	go test -p $(JOBS) -count=1 -v -run 'TestModel$$' -timeout 60m ./internal/node ./internal/ledger -rapid.checks=1100 -rapid.steps=100

.PHONY: lint
lint: ## gofmt, the length of lines, go vet, staticcheck, tidy modules, and shellcheck where it is installed
	@unformatted=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs -r gofmt -l); \
	  [ -z "$$unformatted" ] || { printf 'not formatted, run gofmt -w on:\n%s\n' "$$unformatted" >&2; exit 1; }
	go run ./test/lines
	go vet ./...
	go vet -C kube ./...
	@for module in . kube test/tools/*/; do go -C "$$module" mod tidy -diff; done
	@mkdir -p .cache/bin && go build -C test/tools/staticcheck -p $(JOBS) -o ../../../.cache/bin/ tool
	.cache/bin/staticcheck ./...
	cd kube && ../.cache/bin/staticcheck ./...
	go vet -tags failpoint ./...
	.cache/bin/staticcheck -tags failpoint ./...
	go vet -tags e2e ./test/e2e
	.cache/bin/staticcheck -tags e2e ./test/e2e
	@! command -v shellcheck >/dev/null || git ls-files -z .ci/run '*.sh' | xargs -0 shellcheck -S warning

.PHONY: fuzz
fuzz: ## every Fuzz function for FUZZTIME (10s)
	@failed=; \
	for dir in $$(grep -rlE '^func Fuzz' --include='*_test.go' * | xargs -n1 dirname | sort -u); do \
	  for name in $$(grep -hoE '^func Fuzz\w+' "$$dir"/*_test.go | cut -d' ' -f2); do \
	    echo "== $$dir $$name"; \
	    go -C "$$dir" test -p $(JOBS) -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) . || \
	      failed+=" $$dir/$$name"; \
	  done; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: torture
torture: ## containers of every engine and mode while everything breaks, for TIME (30m) and until each fault came and each kind lived; an interrupted one goes on, with the same programs; TEST_SEED=N repeats its order; TORTURE_ROUNDS=200 repeats the tests of crashes and races afterwards (root)
	@test/setup.sh torture
	GPULEDGER_TEST_MORE=1 CAMPAIGN_TIME=$(TIME) CAMPAIGN_STATE="$(CURDIR)/.cache/campaign.json" test/rig/leftovers.sh \
	  go test -C test/campaign -p $(JOBS) -count=1 -timeout 0 -v -run '^TestCampaign$$'
ifneq ($(TORTURE_ROUNDS),)
	$(MAKE) --no-print-directory build
	GPULEDGER_TEST_MORE=1 SHIM_KILLS=500 TORTURE_ROUNDS=$(TORTURE_ROUNDS) test/rig/leftovers.sh go test -p 1 -tags failpoint -count=1 -timeout 60m \
	  ./internal/ledger/... ./internal/node/... ./runtime/... ./hook/... ./test/...
endif

.PHONY: soak
soak: ## the lives of make torture without faults, for SOAK (4h): memory, descriptors, files, cgroups and mounts must not grow (root)
	@test/setup.sh torture
	SOAK=$(SOAK) test/rig/leftovers.sh go test -C test/campaign -p $(JOBS) -count=1 -timeout 0 -v -run '^TestSoak$$'
