#!/usr/bin/env python3
"""Runs every verification of the contract, and prints a table of what was covered and how long it took.

    scripts/verify.py                 all steps: see STEPS
    scripts/verify.py NAME ...        single steps, by name
    scripts/verify.py --list          lists the steps

The settings of a step (number of kills, cases, messages) are in the table below, and can be changed in the
environment: PILLARBOX_KILLS=500 scripts/verify.py crash-sqlite. The full output is kept in target/verify; its end is
printed if a step fails. The other steps run in any case.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tlaplus  # noqa: E402

OUT = os.path.join(tlaplus.ROOT, "target", "verify")
CARGO = os.environ.get("CARGO", "cargo")


@dataclass
class Step:
    name: str
    shows: str
    command: list
    # The amount covered: a pattern of the output, and the text for its groups. Numbers of several lines are added up.
    figure: str
    summary: str
    settings: dict = field(default_factory=dict)


def script(name, *arguments):
    return [sys.executable, os.path.join(tlaplus.ROOT, "scripts", name), *arguments]


def tests(which):
    # Of the whole workspace, as `make test` builds it, so that nothing is compiled again.
    return [CARGO, "nextest", "run", "--locked", "--workspace", "--all-features", "--cargo-quiet", "--profile",
            "campaign", "--no-capture", "--filterset", which]


def of(package, *modules):
    """Returns the filter of the integration tests of a crate in these modules."""
    return f"(package(pillarbox-{package}) & binary(it) & test(/^({'|'.join(modules)})::/))"


# Summaries of campaigns, in Debug format.
SENT = r"\bsent: (\d+)"
PASSED = r"(?m)^\s+Summary .*?(\d+) tests? run: "

STEPS = [
    Step("models", "TLA+ models, and broken ones that must be refuted", script("tlaplus.py", "quick"),
         r"(\d+) checks of ([\d,]+) states, (\d+) of them", "{} checks, {} states, {} refuted"),
    Step("script-traces", "random runs of the real scripts, checked by TLC",
         script("tlaplus_record.py", "--traces", os.environ.get("TRACES", "100")),
         r"(\d+) real traces of \d+ runs accepted, (\d+) doctored ones rejected", "{} traces, {} doctored"),
    Step("broken-scripts", "scripts broken on purpose, which TLC must detect",
         script("tlaplus_record.py", "--broken"), r"(\d+) of \d+ broken scripts noticed", "{} noticed"),
    Step("client-traces", "calls of clients under load and faults, checked by TLC",
         tests(of("redis", "traces")),
         r"(\d+) traces accepted; (\d+) doctored ones rejected", "{} traces, {} doctored",
         {"PILLARBOX_TRACES": 25}),
    Step("stateright", "the ledger, every order of every step", tests(of("testing", "ledger_exhaustive")),
         r"(\d+) states, (\d+) distinct", "{} states, {} distinct"),
    Step("properties", "random commands in memory and in files against the ledger",
         tests(f"{of('sqlite', 'property')} | {of('testing', 'memory_property')}"), PASSED, "{} properties"),
    Step("properties-redis", "the same on real servers, with every key read back",
         tests(of("redis", "property", "invariants")), PASSED, "{} properties", {"PILLARBOX_CASES": 50}),
    Step("fuzzing", "readers of foreign bytes, on random inputs", tests(of("fuzz", "targets", "known_defects")),
         r": (\d+) inputs, (\d+) outcomes", "{} inputs, {} outcomes", {"PILLARBOX_INPUTS": 100_000}),
    Step("stress", "producers and consumers, leases that expire under load, in memory and in files",
         tests(f"{of('sqlite', 'stress')} | {of('testing', 'memory_stress')}"), SENT, "{} messages"),
    Step("stress-redis", "the same on a server", tests(of("redis", "stress")), SENT, "{} messages",
         {"PILLARBOX_MESSAGES": 20_000}),
    Step("simulation", "the runtime with faults of every kind", tests(of("runtime", "simulation")),
         r"(\d+) seeds", "{} seeds", {"PILLARBOX_SEEDS": 2000}),
    Step("crash-sqlite", "killed processes on a SQLite file, failing writes", tests(of("sqlite", "crash")),
         SENT, "{} messages", {"PILLARBOX_KILLS": 40}),
    Step("crash-redis", "killed clients, servers and replies of Redis", tests(of("redis", "crash")),
         SENT, "{} messages", {"PILLARBOX_KILLS": 40}),
    Step("failover", "primaries killed, suspended and handed over", tests(of("redis", "failover")),
         SENT, "{} messages", {"PILLARBOX_FAILOVERS": 3}),
]


def run(step):
    """Returns whether it passed, what was covered, the seconds it took, and its output."""
    settings = {name: os.environ.get(name, str(value)) for name, value in step.settings.items()}
    log = os.path.join(OUT, step.name + ".log")
    began = time.monotonic()
    with open(log, "w") as file:
        code = subprocess.run(step.command, cwd=tlaplus.ROOT, env=os.environ | settings, stdout=file,
                              stderr=subprocess.STDOUT).returncode
    took = time.monotonic() - began
    with open(log, errors="replace") as file:
        output = file.read()
    found = [match.groups() for match in re.finditer(step.figure, output)]
    covered = step.summary.format(*(f"{sum(int(number.replace(',', '')) for number in column):,}" for column in zip(*found))) if found else ""
    covered += "".join(f", {name.removeprefix('PILLARBOX_').lower()} {value}" for name, value in settings.items())
    # A step that covered nothing has failed.
    return code == 0 and bool(found), covered, took, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help="names of steps; all by default")
    parser.add_argument("--list", action="store_true", help="list the steps")
    arguments = parser.parse_args()
    if arguments.list:
        for step in STEPS:
            print(f"{step.name:16} {step.shows}")
        return 0
    unknown = set(arguments.steps) - {step.name for step in STEPS}
    if unknown:
        sys.exit(f"there is no step '{unknown.pop()}'; --list lists them")
    os.makedirs(OUT, exist_ok=True)
    chosen = [step for step in STEPS if not arguments.steps or step.name in arguments.steps]
    rows, failed = [], []
    for number, step in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {step.name}: {step.shows} ...", file=sys.stderr, flush=True)
        passed, covered, took, output = run(step)
        if step.name == "models":
            print(output)
        if not passed:
            failed.append(step.name)
            print("\n".join(output.splitlines()[-60:]), f"\n{step.name} failed: target/verify/{step.name}.log")
        rows.append([step.name, step.shows, covered, f"{took:.0f} s", "passed" if passed else "FAILED"])
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(f"{len(rows)} steps, " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
