#!/usr/bin/env python3
"""Everything that backs the contract, one after the other, and a table of what was looked at and how long it took.

    scripts/verify.py                 all of it: see STEPS
    scripts/verify.py NAME ...        single steps, by name
    scripts/verify.py --list          what there is

What a step may be told (how many kills, cases, messages) is in the table below, and can be set otherwise in the
environment: PILLARBOX_KILLS=500 scripts/verify.py crash-sqlite. Full output is kept in target/verify, and its end is
shown where a step has failed; the others run all the same.
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
    # What says how much was looked at: a pattern, and how its groups are told. Numbers of several lines are added up.
    figure: str
    told: str
    settings: dict = field(default_factory=dict)


def script(name, *arguments):
    return [sys.executable, os.path.join(tlaplus.ROOT, "scripts", name), *arguments]


def tests(which):
    # Of the whole workspace, as `make test` builds it: nothing is compiled once more.
    return [CARGO, "nextest", "run", "--locked", "--workspace", "--all-features", "--cargo-quiet", "--profile",
            "campaign", "--no-capture", "--filterset", which]


def of(package, *modules):
    """The integration tests of a crate that are in one of these modules."""
    return f"(package(pillarbox-{package}) & binary(it) & test(/^({'|'.join(modules)})::/))"


# The lines in which campaigns say what they did, as Debug writes it.
SENT = r"\bsent: (\d+)"
PASSED = r"(?m)^\s+Summary .*?(\d+) tests? run: "

STEPS = [
    Step("models", "TLA+ models, and broken ones that must be refuted", script("tlaplus.py", "quick"),
         r"(\d+) checks of ([\d,]+) states, (\d+) of them", "{} checks, {} states, {} refuted"),
    Step("script-traces", "the real scripts at random, judged by TLC",
         script("tlaplus_record.py", "--traces", os.environ.get("TRACES", "100")),
         r"(\d+) real traces of \d+ runs accepted, (\d+) doctored ones rejected", "{} traces, {} doctored"),
    Step("broken-scripts", "scripts broken on purpose, each of which TLC must notice",
         script("tlaplus_record.py", "--broken"), r"(\d+) of \d+ broken scripts noticed", "{} noticed"),
    Step("client-traces", "what clients had servers do under load and faults, judged by TLC",
         tests(of("redis", "traces")),
         r"(\d+) traces accepted; (\d+) doctored ones rejected", "{} traces, {} doctored",
         {"PILLARBOX_TRACES": 25}),
    Step("stateright", "the ledger, every order of every step", tests(of("testing", "ledger_exhaustive")),
         r"(\d+) states, (\d+) distinct", "{} states, {} distinct"),
    Step("properties", "random commands in memory and in files against the ledger",
         tests(f"{of('sqlite', 'property')} | {of('testing', 'memory_property')}"), PASSED, "{} properties"),
    Step("properties-redis", "the same on real servers, with every key read back",
         tests(of("redis", "property", "invariants")), PASSED, "{} properties", {"PILLARBOX_CASES": 50}),
    Step("fuzzing", "all that reads foreign bytes, on inputs that nobody would write", tests(of("fuzz", "targets", "known_defects")),
         r": (\d+) inputs, (\d+) outcomes", "{} inputs, {} outcomes", {"PILLARBOX_INPUTS": 100_000}),
    Step("stress", "producers and consumers, leases that end under load, in memory and in files",
         tests(f"{of('sqlite', 'stress')} | {of('testing', 'memory_stress')}"), SENT, "{} messages"),
    Step("stress-redis", "the same on a server", tests(of("redis", "stress")), SENT, "{} messages",
         {"PILLARBOX_MESSAGES": 20_000}),
    Step("simulation", "the runtime in a world where everything fails", tests(of("runtime", "simulation")),
         r"(\d+) seeds", "{} seeds", {"PILLARBOX_SEEDS": 2000}),
    Step("crash-sqlite", "processes on a SQLite file killed, writes that fail", tests(of("sqlite", "crash")),
         SENT, "{} messages", {"PILLARBOX_KILLS": 40}),
    Step("crash-redis", "clients, servers and replies of Redis killed", tests(of("redis", "crash")),
         SENT, "{} messages", {"PILLARBOX_KILLS": 40}),
    Step("failover", "primaries killed, hung and handed over", tests(of("redis", "failover")),
         SENT, "{} messages", {"PILLARBOX_FAILOVERS": 3}),
]


def run(step):
    """Whether it passed, what was looked at, and the seconds that it took."""
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
    told = step.told.format(*(f"{sum(int(number.replace(',', '')) for number in column):,}" for column in zip(*found))) if found else ""
    told += "".join(f", {name.removeprefix('PILLARBOX_').lower()} {value}" for name, value in settings.items())
    # What looked at nothing has shown nothing.
    return code == 0 and bool(found), told, took, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help="names of steps; all unless said otherwise")
    parser.add_argument("--list", action="store_true", help="list the steps")
    arguments = parser.parse_args()
    if arguments.list:
        for step in STEPS:
            print(f"{step.name:16} {step.shows}")
        return 0
    unknown = set(arguments.steps) - {step.name for step in STEPS}
    if unknown:
        sys.exit(f"there is no step '{unknown.pop()}'; --list says what there is")
    os.makedirs(OUT, exist_ok=True)
    chosen = [step for step in STEPS if not arguments.steps or step.name in arguments.steps]
    rows, failed = [], []
    for number, step in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {step.name}: {step.shows} ...", file=sys.stderr, flush=True)
        passed, told, took, output = run(step)
        if step.name == "models":
            print(output)
        if not passed:
            failed.append(step.name)
            print("\n".join(output.splitlines()[-60:]), f"\n{step.name} failed: target/verify/{step.name}.log")
        rows.append([step.name, step.shows, told, f"{took:.0f} s", "passed" if passed else "FAILED"])
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(f"{len(rows)} steps, " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
