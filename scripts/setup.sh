#!/usr/bin/env bash
# Installs the named needs if they are not here: build, rust-components, cargo-nextest, cargo-deny,
# pictures.
# Prints nothing when there is nothing to do. Debian's packages go to the system, everything else
# to target/.
set -euo pipefail
cd "$(dirname "$0")/.."

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

apt_install() {
  command -v apt-get > /dev/null || { echo "please install: $*" >&2; exit 1; }
  echo "installing $* ..."
  as_root apt-get update -qq
  DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq "$@" > /dev/null
}

cargo_install() { # crate, version
  echo "building $1 $2 (once, a few minutes) ..."
  cargo install --quiet --locked --root target/tools "$1" --version "$2"
}

for need in "$@"; do
  case $need in
    build)
      command -v cargo > /dev/null || { echo "Rust is not here; see https://rustup.rs" >&2; exit 1; }
      command -v cc > /dev/null || apt_install build-essential
      ;;
    rust-components)
      cargo fmt --version > /dev/null 2>&1 || rustup component add rustfmt
      cargo clippy --version > /dev/null 2>&1 || rustup component add clippy
      ;;
    cargo-nextest)
      cargo nextest --version > /dev/null 2>&1 || cargo_install cargo-nextest 0.9.143
      ;;
    cargo-deny)
      command -v cargo-deny > /dev/null || cargo_install cargo-deny 0.20.2
      ;;
    pictures)
      if [ ! -x target/venv-pictures/bin/python ]; then
        python3 -c 'import ensurepip' 2> /dev/null || apt_install python3-venv
        python3 -m venv target/venv-pictures
        target/venv-pictures/bin/pip install --quiet pyte==0.8.2
      fi
      ;;
    *) echo "setup.sh: unknown need '$need'" >&2; exit 2 ;;
  esac
done
