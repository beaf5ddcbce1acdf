# What there is to do here. `make` alone says so.

CARGO ?= cargo
FUZZ_SECONDS ?= 60
SEEDS ?= 5000
FROM ?= 1000
# A seed of `chance` takes some minutes, one of `labs` milliseconds.
CHANCES = $(if $(filter file,$(origin SEEDS)),10,$(SEEDS))

.PHONY: help demo test test-xen check bench fuzz labs chance tools

help:
	@echo 'make demo    build, and show the main job on four disks that a real kernel wrote'
	@echo 'make test    install what the tests need (as root: apt-get), and run every check and test'
	@echo 'make test-xen  serve guests of Xen, booted under QEMU (tests/xen; a quarter of an hour)'
	@echo 'make check   the checks alone: fmt, tidy, clippy, doc, the lock of fuzz, deny'
	@echo 'make bench   measure Blockwork and its peers side by side, into bench/RESULTS.md'
	@echo 'make labs    power cuts and faults: $(SEEDS) seeds for each test of crates/sim, from $(FROM) on (SEEDS=N FROM=M; a minute per 1,000)'
	@echo 'make chance  LVM groups and arrays by chance, the kernel in a guest and us in turns: $(CHANCES) seeds from $(FROM) on (SEEDS=N FROM=M; two minutes each)'
	@echo 'make fuzz    $(FUZZ_SECONDS) s of libFuzzer for each target (FUZZ_SECONDS=N; nightly and cargo-fuzz)'

# Needs a Rust toolchain and nothing else.
demo:
	$(CARGO) build --release --locked -p blockwork
	"$${CARGO_TARGET_DIR:-target}/release/blockwork" demo

tools:
	scripts/install-test-tools

test: tools
	scripts/test

# Not in `make test`: it downloads 140 MB and is slow.
test-xen:
	$(CARGO) build --release --locked -p blockwork
	tests/xen/run

check:
	scripts/test --quick

bench:
	bench/run --build

# `make test` runs the same few hundred seeds each time; bugs were found that one of some ten thousand shows.
labs:
	SEEDS=$(SEEDS) FROM=$(FROM) $(CARGO) test --release --locked -p blockwork-sim --no-fail-fast

# `make test` runs one short seed of each. They end at the first that fails.
chance: tools
	SEEDS=$(CHANCES) FROM=$(FROM) PATH="$$PWD/target/test-tools/bin:$$PATH:/usr/sbin:/sbin" \
		$(CARGO) test --locked -p blockwork --test kernel -- chance --nocapture

# Without nightly: `cargo test -p blockwork-fuzz-entry` runs the same targets over their corpora and mutations of them.
fuzz:
	@$(CARGO) +nightly fuzz --version >/dev/null || { echo 'needs: rustup toolchain install nightly; cargo install cargo-fuzz' >&2; exit 1; }
	set -e; for target in $$($(CARGO) +nightly fuzz list); do \
		echo "== $$target"; $(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS); done
