# What there is to do here. `make` alone says so.

CARGO ?= cargo
FUZZ_SECONDS ?= 60
SEEDS ?= 5000
FROM ?= 1000
# A seed of `chance` takes some minutes, one of `labs` milliseconds.
CHANCES = $(if $(filter file,$(origin SEEDS)),10,$(SEEDS))
# Where `make install` puts what `make build` has made: below DESTDIR, for who makes a package of it.
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
DATADIR ?= $(PREFIX)/share
BLOCKWORK ?= $${CARGO_TARGET_DIR:-target}/release/blockwork

.PHONY: help build install demo test test-xen check bench fuzz labs chance tools

help:
	@echo 'make build   build it, into target/release'
	@echo 'make install  then, as root: the program, its manual pages, and completion for bash, zsh and fish, into $(PREFIX) (PREFIX=, DESTDIR=)'
	@echo 'make demo    build, and show the main job on four disks that a real kernel wrote'
	@echo 'make test    install what the tests need (as root: apt-get), and run every check and test'
	@echo 'make test-xen  serve guests of Xen, booted under QEMU (tests/xen; a quarter of an hour)'
	@echo 'make check   the checks alone: fmt, tidy, clippy, doc, the lock of fuzz, deny'
	@echo 'make bench   measure Blockwork and its peers side by side, into bench/RESULTS.md'
	@echo 'make labs    power cuts and faults (arrays, RAID volumes of LVM, thin pools, snapshots): $(SEEDS) seeds for each test of crates/sim, from $(FROM) on (SEEDS=N FROM=M; a minute per 1,000)'
	@echo 'make chance  LVM groups and arrays by chance, the kernel in a guest and us in turns: $(CHANCES) seeds from $(FROM) on (SEEDS=N FROM=M; two minutes each)'
	@echo 'make fuzz    $(FUZZ_SECONDS) s of libFuzzer for each target (FUZZ_SECONDS=N; nightly and cargo-fuzz)'

# Needs a Rust toolchain and nothing else.
build:
	$(CARGO) build --release --locked -p blockwork

# Without a toolchain, which root need not have. What is generated is all there before anything is installed.
install:
	@test -x "$(BLOCKWORK)" || { echo "$(BLOCKWORK) is not there: \`make build\` makes it, as the user who builds" >&2; exit 1; }
	set -e; made=$$(mktemp -d); trap 'rm -rf "$$made"' EXIT; "$(BLOCKWORK)" man "$$made/man1"; \
		for shell in bash zsh fish; do "$(BLOCKWORK)" completion $$shell >"$$made/$$shell"; done; \
		install -D -m 755 "$(BLOCKWORK)" "$(DESTDIR)$(BINDIR)/blockwork"; \
		install -d "$(DESTDIR)$(DATADIR)/man/man1"; \
		install -m 644 "$$made"/man1/* "$(DESTDIR)$(DATADIR)/man/man1"; \
		install -D -m 644 "$$made/bash" "$(DESTDIR)$(DATADIR)/bash-completion/completions/blockwork"; \
		install -D -m 644 "$$made/zsh" "$(DESTDIR)$(DATADIR)/zsh/site-functions/_blockwork"; \
		install -D -m 644 "$$made/fish" "$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/blockwork.fish"

demo: build
	"$${CARGO_TARGET_DIR:-target}/release/blockwork" demo

tools:
	scripts/install-test-tools

test: tools
	scripts/test

# Not in `make test`: it downloads 140 MB and is slow.
test-xen: build
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
