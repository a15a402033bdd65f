#!/usr/bin/env python3
"""Runs the real scripts on a real Redis server, at random, and checks their effects with TLC.

    scripts/tlaplus_record.py [--traces N] [--events N] [--seed N]
    scripts/tlaplus_record.py --broken    scripts that are broken on purpose, each of which must be noticed

Every run of a script is recorded: its arguments, the time that it used as now, and its reply. Calls are
repeated, copies of old calls arrive late, leases of less than a millisecond expire. Half of the traces are made with
`at_once` (header.lua) set to 3, so that more messages are due than one script promotes. Each trace must be a
behaviour of specs/tla/PillarboxScripts.tla, and doctored copies of it must not be.
"""

import argparse
import json
import os
import random
import re
import socket
import string
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tlaplus  # noqa: E402
import tlaplus_trace  # noqa: E402

SCRIPTS = os.path.join(tlaplus.ROOT, "crates", "pillarbox-redis", "scripts")


class Server:
    """A private server, on a socket in its own directory."""

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        path = os.path.join(self.directory.name, "redis.sock")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", self.directory.name],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(path)
                break
            except OSError:
                time.sleep(0.05)
        else:
            sys.exit("redis-server does not answer")
        self.file = self.socket.makefile("rb")
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()

    def call(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self.read()

    def read(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2].decode()
        return None if rest == b"-1" else [self.read() for _ in range(int(rest))]


# Scripts that are broken on purpose: the file, the text to replace, and its replacement; or several of these.
BROKEN = {
    "a settle takes any receipt": ("settle", "sub(current, 1, 16) == sub(token, 1, 16)", "true"),
    "a settle ends no lease first": ("settle", "-- @promote", "promoted = 0"),
    "a nack keeps the receipt": ("settle", "given_back[#given_back + 1] = deliveries",
                                 "given_back[#given_back + 1] = back and current or deliveries"),
    "a nack is no attempt": ("settle", "if release or not back", "if back or not back"),
    "a release is an attempt": ("settle", "if release or not back", "if not back"),
    "a release of a started delivery is unsettled": (
        "settle", "if is_started then deliveries = sub(deliveries, 1, -2) end", ""),
    "a start is not noted": ("settle", "deliveries = deliveries .. 's'", ""),
    "a start is not stored": ("settle", "if #marked > 0 then redis_call('HSET', meta, unpack(marked)) end", ""),
    "a start is unknown to the rest of its call": ("settle", "started[id] or known[n]", "known[n]"),
    "a start outlives its delivery": (
        ("settle", "if is_started then deliveries = sub(deliveries, 1, -2) end",
         "if release and is_started then deliveries = sub(deliveries, 1, -2) end"),
        ("receive", "'^(%d+)(:?%d*)', from", "'^(%d+)(:?%d*s?)', from")),
    "an extension by zero is left to the clock": ("settle", "if micros == 0 then\n        ready[",
                                                     "if back and micros == 0 then\n        ready["),
    "an acknowledgement leaves the body": ("settle", "redis_call('HDEL', data, unpack(gone))", ""),
    "a send stores an existing id again": ("send", "local here = redis_call('HMGET', data, unpack(ARGV, 6, last_id))",
                                   "local here = {}"),
    "a send promotes nothing": ("send", "-- @promote", "promoted = 0"),
    "a send forgets its answer": ("send", "-- @remember", ""),
    "promoting reverses the order": ("promote", "redis_call('LPUSH', pending, unpack(due))",
                                        "redis_call('RPUSH', pending, unpack(due))"),
    "expiry counts no unsettled delivery": ("expired", "number = number + 4294967296", ""),
    "expiry counts a started delivery as no attempt": ("expired", "if started == 's' then", "if false then"),
    "expiry counts a delivery that was not started as unsettled": (
        "expired", "if started == 's' then", "if number then"),
    "expiry does not count a delivery that was no attempt": ("expired", "(tonumber(uncounted) or 0) + 1",
                                                  "(tonumber(uncounted) or 0)"),
    "expiry of a started delivery forgets those that were no attempt": (
        "expired", " .. sub(before, string.find(before, ':', 1, true) or #before + 1)", ""),
    "a receive counts nothing": ("receive", "(before or 0) + 1", "(before or 0)"),
    "a receive forgets deliveries that were no attempt": ("receive", " .. (rest or '')", ""),
    "a repeated receive forgets deliveries that were no attempt": (
        "receive", "string.format('%.0f', count - 1) .. rest", "string.format('%.0f', count - 1)"),
    "a receive takes from the wrong end": ("receive", "redis_call('RPOP', pending, ARGV[4])",
                                           "redis_call('LPOP', pending, ARGV[4])"),
    "a repeated receive delivers again": ("receive", "record >= ARGV[1]", "false"),
    "messages that cannot be promoted yet are overtaken": ("send", "if promoted == at_once then", "if false then"),
    "a delivery that was taken back stays counted": ("release", "string.format('%.0f', count - 1)",
                                                     "string.format('%.0f', count)"),
    "a delivery that was taken back forgets those that were no attempt": (
        "release", "count - 1) .. rest", "count - 1)"),
    "a purge keeps messages in flight": ("purge", "redis_call('UNLINK', pending, invisible, data, meta)",
                                         "redis_call('UNLINK', pending)"),
}


def source(name, broken=None):
    with open(os.path.join(SCRIPTS, name + ".lua")) as file:
        text = file.read()
    for file, old, new in broken if broken and isinstance(broken[0], tuple) else [broken] if broken else []:
        if file == name:
            assert old in text, f"{name}.lua has no '{old}'"
            text = text.replace(old, new)
    return re.sub(r"(?m)^\s*-- @(\w+)$", lambda part: source(part.group(1), broken), text)


def script(name, at_once, broken):
    """Returns the script, extended to also return the time that it used."""
    header, changed = re.subn(r"(?m)^local at_once = \d+$", f"local at_once = {at_once}", source("header"))
    header, noted = re.subn(r"(?m)^(local now_text = .*)$", r"\1\nat = now_text", header)
    assert changed == noted == 1, "header.lua has changed"
    return f"local at\nlocal function run()\n{header}\n{source(name, broken)}\nend\nlocal reply = run()\nreturn {{at, reply}}"


SECRET = string.ascii_letters + string.digits


class Recorder:
    def __init__(self, server, seed, at_once, broken=None):
        self.server, self.random, self.at_once, self.broken = server, random.Random(seed), at_once, broken
        self.tag = f"{{queue:trace-{seed}}}"
        self.scripts = {}
        self.events, self.known, self.calls = [], [], {}
        self.messages = sorted(self.secret(22) for _ in range(self.random.randint(3, 12)))
        self.numbers, self.reader = {}, tlaplus_trace.Calls()

    def secret(self, length=16):
        return "".join(self.random.choice(SECRET) for _ in range(length))

    def run(self, op, arguments, caller=None, number=0, again=False):
        if op not in self.scripts:
            self.scripts[op] = script(op, self.at_once, self.broken)
        keys = [f"{self.tag}:{key}" for key in ("pending", "invisible", "data", "meta")]
        keys.append(f"{self.tag}:call:{caller or ''}")
        keys += keys[4:] if again else []
        words = [str(word) for word in (f"{number:012}", 600_000, 0, *arguments)]
        at, reply = self.server.call("EVAL", self.scripts[op], len(keys), *keys, *words)
        event = self.reader.event([op, at, keys, words, reply])
        self.events.append(event)
        return event

    # Calls, with the arguments that are needed to repeat them.

    def make(self, op, arguments):
        caller = f"{op}-{self.random.randint(1, 2)}"
        number = self.numbers.get(caller, 0) + 1
        self.numbers[caller] = number
        call = (op, arguments, caller, number)
        self.calls.setdefault(caller, []).append(call)
        self.learn(self.run(*call))

    def learn(self, event):
        if event["op"] == "receive":
            # The n-th message has the n-th receipt.
            self.known += [(d[0], r) for d, r in zip(event["reply"], event["receipts"])]

    def send(self):
        batch = self.random.sample(self.messages, self.random.randint(1, 3))
        delays = [self.random.choice([0, 0, self.random.randint(1, 4000)]) for _ in batch]
        capacity = self.random.choice([None, None, 4])
        heads = [f"{delay} -" if delay else "" for delay in delays]
        arguments = ["" if capacity is None else capacity, len(batch), *batch, *["body"] * len(batch)]
        arguments += heads if any(heads) else []
        self.make("send", arguments)

    def receive(self):
        leases = self.random.sample([0, 500, 3000, 10**7], 2)
        # Receivers whose leases end at the same moment: their messages were once requeued in the order of ids, not of
        # deliveries (specs/tla/traces/rejected/ties-between-receivers.json).
        if self.random.random() < 0.5:
            leases[1] = leases[0]
        receivers = [{"max": self.random.randint(1, 3), "lease": lease}
                     for lease in leases[:self.random.randint(1, 2)]]
        wanted = sum(receiver["max"] for receiver in receivers)
        secrets = [self.secret() for _ in range(wanted)]
        arguments = [wanted, len(receivers)]
        for receiver in receivers:
            arguments += [receiver["max"], receiver["lease"]]
        arguments += [secret + "1" for secret in secrets]
        self.make("receive", arguments)

    def settle(self):
        if not self.known:
            return
        kinds = self.random.choices(["ack", "nack", "nack", "release", "extend", "start", "start"],
                                    k=self.random.randint(1, 3))
        entries = [(kind, self.random.choice(self.known[-6:])) for kind in kinds]
        if self.random.random() < 0.3:
            # An entry must see the effects of those before it, and a message extended by zero is requeued first.
            last, other = self.known[-1], self.known[-2:][0]
            entries = self.random.choice([[("start", last), ("extend", last)], [("start", last), ("release", last)],
                                          [("extend", last), ("nack", other)]])
        ids, tokens = [], []
        for kind, (id, secret) in entries:
            times = {"ack": [""], "nack": [0, 700, 4000], "extend": [0, 600, 5000]}
            times |= {"release": times["nack"], "start": times["extend"]}
            ids.append(id)
            tokens.append(f"{secret}{tlaplus_trace.KINDS[kind]}{self.random.choice(times[kind])}")
        self.make("settle", [len(ids), *ids, *tokens])

    def release(self):
        if self.known:
            self.run("release", [word for entry in dict(self.known[-2:]).items() for word in entry])

    def look(self):
        self.run("look", [])

    def purge(self):
        self.make("purge", [])

    def again(self):
        """Repeats the last call of a caller, or the one before it, which was delayed."""
        if self.calls:
            calls = self.random.choice(list(self.calls.values()))
            call = calls[-2] if len(calls) > 1 and call_is_safe(calls) and self.random.random() < 0.4 else calls[-1]
            self.learn(self.run(*call, again=True)) if call is calls[-1] else self.run(*call)

    def record(self, count):
        while len(self.events) < count:
            what = self.random.choices([self.send, self.receive, self.settle, self.release, self.look, self.purge,
                                        self.again], [22, 26, 26, 4, 5, 1, 12])[0]
            what()
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.004)
        return self.events


def call_is_safe(calls):
    """Returns whether a late copy can be recognized. That of a purge cannot: its answer is a number in any case."""
    return calls[-1][0] != "purge"


def record(seeds, events, at_once, broken=None):
    """Returns traces of (name, whether it must be accepted, events)."""
    with Server() as server:
        for seed in seeds:
            recorded = Recorder(server, f"{seed}-{at_once}", at_once, broken).record(events)
            with open(os.path.join(ensure(tlaplus_trace.OUT), f"{seed}-{at_once}.json"), "w") as file:
                json.dump(recorded, file)
            yield f"seed {seed}, {at_once} at once", True, recorded


def judge(seeds, events, at_once):
    """Returns whether traces of the scripts are accepted, and doctored ones rejected."""
    good = list(record(seeds, events, at_once))
    bad = [changed for name, _, recorded in good for changed in tlaplus_trace.doctored(name, recorded, sure=True)]
    is_right, output = tlaplus_trace.check(good + bad, at_once, with_ledger=False)
    if is_right:
        print(f"at most {at_once} promoted at once: {len(good)} real traces of {events} runs accepted, "
              f"{len(bad)} doctored ones rejected")
    else:
        print(tlaplus_trace.explain(output, good + bad))
    return is_right


# Number of traces of a broken script that are recorded and checked together, and number of tries: some defects show
# only when several conditions meet.
TOGETHER, TRIES = 12, 10


def is_noticed(what, broken, seed, events):
    """Returns whether any trace of a broken script is rejected."""
    for seeds in (range(seed + n * TOGETHER, seed + (n + 1) * TOGETHER) for n in range(TRIES)):
        try:
            traces = list(record(seeds, events, 3, broken))
        except RuntimeError as error:
            # A script that does not compile proves nothing.
            runs = "compiling" not in str(error).lower()
            print(f"{what}: {'the server noticed' if runs else 'NOT A SCRIPT'}: {error}")
            return runs
        is_right, output = tlaplus_trace.check(traces, 3, with_ledger=False)
        if not is_right:
            is_found = "is violated" in output
            print(f"{what}: {tlaplus_trace.explain(output, traces).splitlines()[0] if is_found else output}")
            return is_found
    print(f"{what}: NOT NOTICED in {TOGETHER * TRIES} traces")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=tlaplus.positive, default=20)
    parser.add_argument("--events", type=tlaplus.positive, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--broken", action="store_true", help="break the scripts, which must be noticed")
    arguments = parser.parse_args()
    if arguments.broken:
        noticed = [is_noticed(what, broken, arguments.seed, arguments.events) for what, broken in BROKEN.items()]
        print(f"{sum(noticed)} of {len(noticed)} broken scripts noticed")
        return 0 if all(noticed) else 1
    seeds = range(arguments.seed, arguments.seed + (arguments.traces + 1) // 2)
    return 0 if all([judge(seeds, arguments.events, at_once) for at_once in (200, 3)]) else 1


def ensure(directory):
    os.makedirs(directory, exist_ok=True)
    return directory


if __name__ == "__main__":
    tlaplus.program(main)
