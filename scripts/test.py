#!/usr/bin/env python3
"""Runs the steps of `make test`, and prints how long each took.

    scripts/test.py

Each step is a target of the Makefile. There are two lanes. The first compiles the tests and runs them; most of
them wait for a clock or a server, so the second lane does the rest of the work meanwhile, at the lowest priority:
no test waits for a processor that a linter has.

The first step that fails ends the run. The output of the second lane is printed between the steps of the first.
"""

import os
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Targets in order, each with those of the other lane that must be done before it. Cargo compiles one thing at a
# time in a directory: clippy must not come before the tests are compiled, or they would wait for it.
MAIN = [("format", []), ("build-tests", []), ("unit", ["setup"]), ("browser-if-here", []), ("doc", []), ("examples", [])]
BESIDE = [("setup", []), ("models", []), ("workflows-if-here", []), ("deny", []), ("book-if-here", []),
          ("clippy", ["build-tests"]), ("rustdoc", [])]
# These run beside compilation as equals: the tests wait for the first, and TLC for nobody.
EQUALS = {"setup", "models"}


class Run:
    def __init__(self):
        self.start = time.monotonic()
        self.rows = []
        self.done = {name: threading.Event() for name, _ in MAIN + BESIDE}
        self.running = set()
        self.failed = None
        self.output = []
        self.lock = threading.Lock()

    def step(self, name, is_beside):
        # The set-up is a step of its own.
        command = ["make", "--no-print-directory", name, *(["PREPARED=1"] if name != "setup" else [])]
        if is_beside and name not in EQUALS:
            command = ["nice", "-n", "19", *command]
        began = time.monotonic()
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if is_beside else {}
        with self.lock:
            if self.failed:
                return False
            # A group of its own, which can be stopped; not a session, which would have a share of the processors
            # of its own, whatever its priority.
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0, **how)
            self.running.add(process)
        output, _ = process.communicate()
        with self.lock:
            self.running.discard(process)
            self.rows.append((began - self.start, time.monotonic() - began, name))
            if output:
                self.output.append(output)
            if process.returncode != 0 and not self.failed:
                self.failed = name
                self.stop()
        return process.returncode == 0

    def lane(self, steps, is_beside):
        for name, needs in steps:
            for need in needs:
                self.done[need].wait()
            if self.failed or not self.step(name, is_beside):
                break
            self.done[name].set()
            if not is_beside:
                self.show()
        if self.failed:
            # Nobody waits for what will not be done.
            for event in self.done.values():
                event.set()

    def show(self):
        with self.lock:
            print("".join(self.output), end="", flush=True)
            self.output.clear()

    def stop(self):
        for process in self.running:
            os.killpg(process.pid, signal.SIGTERM)

    def table(self):
        minutes = lambda seconds: f"{int(seconds) // 60}:{int(seconds) % 60:02}"
        beside = {name for name, _ in BESIDE}
        print(f"{'step':20} {'from':>6} {'took':>6}")
        for began, took, name in sorted(self.rows):
            print(f"{name:20} {minutes(began):>6} {minutes(took):>6}{'  (beside)' if name in beside else ''}")
        print(f"{'all':20} {'':6} {minutes(time.monotonic() - self.start):>6}")


def main():
    run = Run()

    def interrupt(number, _):
        run.failed = run.failed or "interrupted"
        run.stop()
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    beside = threading.Thread(target=run.lane, args=(BESIDE, True), daemon=True)
    beside.start()
    run.lane(MAIN, False)
    beside.join()
    run.show()
    run.table()
    if run.failed:
        sys.exit(f"{run.failed} failed")
    print("== all passed")


if __name__ == "__main__":
    main()
