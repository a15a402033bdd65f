#!/usr/bin/env python3
"""Runs the steps of `make test`, and prints how long each took.

    scripts/test.py

Each step is a target of the Makefile. The foreground compiles the tests and runs them. Most of them wait for a clock
or a server, so the other steps run in the background meanwhile, at the lowest priority: no test waits for a processor
that a linter uses.

The first step that fails ends the run. Output of the background is printed between the steps of the foreground.
"""

import os
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Targets in order, each with the steps of the other sequence that must be done before it. Cargo locks the build
# directory: if clippy came before the tests are compiled, they would wait for it.
FOREGROUND = [("format", []), ("build-tests", []), ("unit", ["setup"]), ("browser-if-here", []), ("doc", []),
              ("examples", [])]
BACKGROUND = [("setup", []), ("models", []), ("workflows-if-here", []), ("release-check-quick", []),
              ("deny", []), ("book-if-here", []),
              ("clippy", ["build-tests"]), ("rustdoc", [])]
# Background steps at normal priority: the tests wait for the first, and TLC has time only while they compile.
NORMAL = {"setup", "models"}


class Run:
    def __init__(self):
        self.start = time.monotonic()
        self.rows = []
        self.done = {name: threading.Event() for name, _ in FOREGROUND + BACKGROUND}
        self.running = set()
        self.failed = None
        self.output = []
        self.lock = threading.Lock()

    def step(self, name, in_background):
        # The set-up is a step of its own.
        command = ["make", "--no-print-directory", name, *(["PREPARED=1"] if name != "setup" else [])]
        if in_background and name not in NORMAL:
            command = ["nice", "-n", "19", *command]
        began = time.monotonic()
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if in_background else {}
        with self.lock:
            if self.failed:
                return False
            # A process group, to stop it as a whole. Not a session: the scheduler may give each session the same share
            # of the processors, whatever its priority.
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

    def sequence(self, steps, in_background):
        for name, needs in steps:
            for need in needs:
                self.done[need].wait()
            if self.failed or not self.step(name, in_background):
                break
            self.done[name].set()
            if not in_background:
                self.show()
        if self.failed:
            # Unblocks the other sequence.
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
        background = {name for name, _ in BACKGROUND}
        print(f"{'step':20} {'from':>6} {'took':>6}")
        for began, took, name in sorted(self.rows):
            print(f"{name:20} {minutes(began):>6} {minutes(took):>6}{'  (background)' if name in background else ''}")
        print(f"{'all':20} {'':6} {minutes(time.monotonic() - self.start):>6}")


def main():
    run = Run()

    def interrupt(number, _):
        run.failed = run.failed or "interrupted"
        run.stop()
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    background = threading.Thread(target=run.sequence, args=(BACKGROUND, True), daemon=True)
    background.start()
    run.sequence(FOREGROUND, False)
    background.join()
    run.show()
    run.table()
    if run.failed:
        sys.exit(f"{run.failed} failed")
    print("== all passed")


if __name__ == "__main__":
    main()
