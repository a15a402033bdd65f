#!/usr/bin/env python3
"""Checks with TLC whether recorded traces of scripts are behaviours of specs/tla/PillarboxScripts.tla.

    scripts/tlaplus_trace.py FILE ...            traces that must be accepted
    scripts/tlaplus_trace.py --doctored FILE ... the same, and copies doctored in many ways must be rejected
    scripts/tlaplus_trace.py --rejected FILE ... traces of former defects, which must be rejected
    scripts/tlaplus_trace.py --calls FILE ...    calls as the server saw them, and doctored copies of them

A trace is a JSON list of events, in the order in which the server ran them:

    {"op": "send",    "at": µs, ..., "batch": [{"m": id, "delay": µs}], "capacity": n or null, "reply": ["1", ...]}
    {"op": "receive", "at": µs, ..., "receivers": [{"max": n, "lease": µs}], "receipts": [secret, ...],
                      "reply": [[id, delivery_count, unsettled, uncounted], ...]}
    {"op": "settle",  "at": µs, ..., "batch": [{"m": id, "r": secret, "kind": one of KINDS, "time": µs}],
                      "reply": ["1", "0", ...]}
    {"op": "release", "at": µs, "batch": [{"m": id, "r": secret}], "reply": [n]}
                      (the deliveries of a receive whose answer was lost)
    {"op": "purge",   "at": µs, ..., "reply": [n]}
    {"op": "look",    "at": µs, "reply": [n ready]}
    {"op": "forget",  "at": µs, "reply": [1 if it held nothing]}

with "caller", "number" and "again" (KEYS[6]) where the answer of the call is remembered. A call as the server saw it
is [name of the script, time that it used as now, KEYS, ARGV, reply]. All traces are checked in one run. Doctored copies
that equal the original are left out.
"""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tlaplus  # noqa: E402

OUT = os.path.join(tlaplus.OUT, "trace")


# --- Reading calls


# Kinds of settles, and the character for each in a token of settle.lua.
KINDS = {"ack": "1", "nack": "n", "release": "r", "extend": "e", "start": "s"}


class Calls:
    """Converts calls of scripts on one queue, in the order in which the server ran them, to events."""

    def __init__(self):
        self.stored = {}
        # Deliveries of receives by caller and number; and receives that must not deliver from then on.
        self.received, self.recalled = {}, set()

    def event(self, call):
        """Returns the event of a call, or None if it changes nothing and is not part of the model."""
        op, at, keys, arguments, reply = call
        made = keys[4], int(arguments[0])
        event = {"op": op, "at": int(at)}
        if op == "receive":
            if made in self.recalled:
                assert len(reply) == 1, "a receive that was recalled has delivered"
                return None
            self.received.setdefault(made, reply[1] if len(reply) > 1 else [])
        if op == "release" and made[1] > 0:
            if not self.received.get(made):
                self.recalled.add(made)
            pairs = zip(self.received.get(made, []), arguments[3:])
            return event | {"batch": [{"m": m, "r": r} for m, r in pairs], "reply": [reply]}
        if op not in ("release", "look", "forget"):
            event |= {"caller": keys[4], "number": int(arguments[0]), "again": len(keys) > 5}
        event |= getattr(self, op, self.unknown(op))(arguments[3:])
        event["reply"] = self.reply(event, reply)
        return event

    @staticmethod
    def unknown(op):
        def refuse(_):
            sys.exit(f"the specification knows no '{op}'")
        return refuse

    # Fields of events, from the arguments after the common ones.

    def send(self, arguments):
        capacity, count = arguments[0], int(arguments[1])
        ids, heads = arguments[2:2 + count], arguments[2 + 2 * count:] or [""] * count
        delays = [int(head.split(" ", 1)[0] or 0) for head in heads]
        return {"batch": [{"m": m, "delay": delay} for m, delay in zip(ids, delays, strict=True)],
                "capacity": int(capacity) if capacity else None}

    def receive(self, arguments):
        numbers = [int(number) for number in arguments[2:2 + 2 * int(arguments[1])]]
        return {"receivers": [{"max": most, "lease": lease} for most, lease in zip(numbers[::2], numbers[1::2])],
                "receipts": [secret[:16] for secret in arguments[2 + len(numbers):]]}

    def settle(self, arguments):
        count = int(arguments[0])
        kinds = {character: kind for kind, character in KINDS.items()}
        return {"batch": [{"m": m, "r": token[:16], "kind": kinds[token[16]], "time": int(token[17:] or 0)}
                          for m, token in zip(arguments[1:1 + count], arguments[1 + count:], strict=True)]}

    def release(self, arguments):
        return {"batch": [{"m": m, "r": r} for m, r in zip(arguments[::2], arguments[1::2], strict=True)]}

    def look(self, _):
        return {}

    purge = forget = look

    def reply(self, event, reply):
        """Returns the reply in the form of the model."""
        if event["op"] in ("send", "settle"):
            answers = reply.rstrip("!~")
            if answers == "+":
                # A record has the size of the call that has stored it.
                size = self.stored[event["caller"]]["size"] if self.is_old(event) else len(event["batch"])
                answers = "1" * size
            if not self.is_old(event) and (event["op"] == "send" and event["again"] or "1" in answers):
                self.stored[event["caller"]] = {"number": event["number"], "size": len(event["batch"])}
            return list(answers)
        if event["op"] == "receive":
            deliveries = []
            for id, body, known in zip(*reply[1:]):
                if body is not None:
                    known = known[16:] if known and len(known) > 16 and ":" not in known[:16] else known or "0"
                    number, _, uncounted = known.removesuffix("s").partition(":")
                    deliveries.append([id, (int(number) & 0xFFFFFFFF) + 1, int(number) >> 32, int(uncounted or 0)])
            return deliveries
        return [reply[0]] if event["op"] == "look" else [reply]

    def is_old(self, event):
        return event["number"] <= self.stored.get(event["caller"], {}).get("number", 0)


# --- Writing TLA+


class Numbers:
    """Numbers for names, in the order of their bytes."""

    def __init__(self, names):
        self.by_name = {name: place for place, name in enumerate(sorted(set(names), key=str.encode), 1)}

    def __getitem__(self, name):
        return self.by_name[name]

    def __len__(self):
        return len(self.by_name)


def ids(events):
    for event in events:
        for entry in event.get("batch", []):
            yield entry["m"]
        if event["op"] == "receive":
            for delivery in event["reply"]:
                yield delivery[0]


def receipts(events):
    for event in events:
        yield from event.get("receipts", [])
        for entry in event.get("batch", []):
            if "r" in entry:
                yield entry["r"]


# TLC's numbers have 32 bits. Times beyond the end of every trace need not be exact.
FAR = 1_500_000_000
LONGEST = 300_000_000


def quarters(micros):
    """Converts to quarters of a microsecond, the smallest step of a score."""
    return min(4 * micros, FAR)


def sequence(values):
    return "<<" + ", ".join(values) + ">>"


def record(**fields):
    return "[" + ", ".join(f"{name} |-> {value}" for name, value in fields.items()) + "]"


def text(value):
    return json.dumps(value)


def event_text(event, start, messages, secrets, callers):
    fields = {
        "op": text(event["op"]), "at": event["at"] - start, "number": event.get("number", 0),
        "caller": callers[event["caller"]] if "caller" in event else 0,
        "again": str(event.get("again", False)).upper(),
    }
    if event["op"] == "send":
        capacity = event.get("capacity")
        fields["capacity"] = 10**9 if capacity is None else capacity
        fields["batch"] = sequence(record(m=messages[e["m"]], delay=quarters(e["delay"])) for e in event["batch"])
    elif event["op"] == "receive":
        fields["receivers"] = sequence(record(max=e["max"], lease=quarters(e["lease"])) for e in event["receivers"])
        fields["receipts"] = sequence(str(secrets[secret]) for secret in event["receipts"])
    elif event["op"] == "settle":
        if unknown := {e["kind"] for e in event["batch"]} - KINDS.keys():
            raise ValueError(f"a settle of the kind {', '.join(sorted(unknown))}")
        fields["batch"] = sequence(record(m=messages[e["m"]], r=secrets[e["r"]], kind=text(e["kind"]),
                                          time=quarters(e["time"])) for e in event["batch"])
    elif event["op"] == "release":
        fields["batch"] = sequence(record(m=messages[e["m"]], r=secrets[e["r"]]) for e in event["batch"])
    if event["op"] == "receive":
        reply = (sequence([str(messages[id]), *(str(min(number, FAR)) for number in (count, unsettled, uncounted))])
                 for id, count, unsettled, uncounted in event["reply"])
    elif event["op"] in ("send", "settle"):
        reply = (text(answer) for answer in event["reply"])
    else:
        reply = (str(number) for number in event["reply"])
    return record(**fields, reply=sequence(reply))


def write(out, traces, at_once, with_ledger):
    """Writes TraceData.tla and the cfg file for traces of (name, whether it is good, events)."""
    most, most_callers, lines = 1, 1, []
    for name, is_good, events in traces:
        messages, secrets = Numbers(ids(events)), Numbers(receipts(events))
        callers = Numbers(event["caller"] for event in events if "caller" in event)
        start = events[0]["at"] if events else 0
        if events and events[-1]["at"] - start > LONGEST:
            sys.exit(f"{name} is longer than {LONGEST // 1_000_000} s: cut it")
        most, most_callers = max(most, len(messages)), max(most_callers, len(callers))
        written = (event_text(event, start, messages, secrets, callers) for event in events)
        lines.append(record(name=text(name), isGood=str(is_good).upper(),
                            events="<<\n    " + ",\n    ".join(written) + ">>"))
    with open(os.path.join(out, "TraceData.tla"), "w") as file:
        file.write("---- MODULE TraceData ----\nEXTENDS Integers\nTraces == <<\n" + ",\n".join(lines) + ">>\n====\n")
    numbers = lambda count: "{" + ", ".join(str(number) for number in range(1, count + 1)) + "}"
    with open(os.path.join(out, "PillarboxTrace.cfg"), "w") as file:
        file.write(f"""SPECIFICATION Spec
CONSTANTS
    Messages = {numbers(most)}
    Callers = {numbers(most_callers)}
    NoReceipt = 0
    MaxCount = 1000000000
    AtOnce = {at_once}
    Spread = 1
    Order <- Identity
    Without = {{}}
    WithLedger = {str(with_ledger).upper()}
INVARIANTS GoodAccepted DoctoredRejected OnePlace Keeps
""")


# --- Doctoring


def find(events, is_it):
    """Returns the index of the first event for which `is_it` holds."""
    return next((place for place, event in enumerate(events) if is_it(place, event)), None)


def doctorings():
    """Returns names, and functions that change a list of events, if there is anything to change."""

    def op(name, *also):
        return lambda _, event: event["op"] == name and all(test(event) for test in also)

    def answered(answer):
        return lambda event: answer in event["reply"]

    def delivers(event):
        return len(event["reply"]) > 0

    def change(is_it, how):
        def doctor(events):
            place = find(events, is_it)
            if place is not None:
                how(events, place)
        return doctor

    def reply(answer, instead):
        def how(events, place):
            answers = events[place]["reply"]
            answers[answers.index(answer)] = instead
        return how

    def swap(events, place):
        answers = events[place]["reply"]
        answers[0], answers[1] = answers[1], answers[0]

    def raise_number(which, by):
        def how(events, place):
            events[place]["reply"][0][which] += by
        return how

    def drop(events, place):
        """Removes a call with its repetitions, which would have its effects instead."""
        name = lambda event: (event["op"], event.get("caller"), event.get("number"))
        gone = name(events[place])
        events[:] = [event for event in events if name(event) != gone]

    def earlier(events, place):
        events[place]["at"] = events[0]["at"] - 1

    def twice(events, place):
        again = copy.deepcopy(events[place])
        again["number"] = 10**6
        events.insert(place + 1, again)

    def late_acknowledgement(events):
        """Turns a refused acknowledgement into an accepted one."""
        change(op("settle", answered("0")), reply("0", "1"))(events)

    def foreign_receipt(events):
        """Gives an accepted settle the receipt of another message."""
        secrets = [secret for event in events for secret in event.get("receipts", [])]
        place = find(events, op("settle", answered("1")))
        if place is not None:
            entry = events[place]["batch"][events[place]["reply"].index("1")]
            entry["r"] = next((secret for secret in secrets if secret != entry["r"]), entry["r"])

    def longer_lease(events):
        """Lengthens a lease that has expired: the message could not have been delivered again."""
        seen, calls = {}, set()
        for place, event in enumerate(events):
            call = (event.get("caller"), event.get("number"))
            if event["op"] != "receive" or call in calls:
                continue
            calls.add(call)
            for delivery in event["reply"]:
                if sum(delivery[2:]) > 0 and delivery[0] in seen:
                    for receiver in events[seen[delivery[0]]]["receivers"]:
                        receiver["lease"] += FAR
                    return
                seen[delivery[0]] = place

    def settled_otherwise(kind, instead):
        """Settles a delivery in another way, which the next delivery of the message contradicts."""
        def doctor(events):
            for place, event in enumerate(events):
                for entry, answer in zip(event.get("batch", []), event["reply"]):
                    if event["op"] == "settle" and answer == "1" and entry["kind"] == kind:
                        id = entry["m"]
                        if any(later["op"] == "receive" and any(delivery[0] == id for delivery in later["reply"])
                               for later in events[place:]):
                            entry["kind"] = instead
                            return
        return doctor

    def repeated_otherwise(events):
        """Changes the answer of a repeated call."""
        seen = set()
        for event in events:
            key = (event.get("caller"), event.get("number"))
            if "caller" in event and key in seen and event["op"] in ("send", "settle") and event["reply"]:
                event["reply"][0] = "0" if event["reply"][0] == "1" else "1"
                return
            seen.add(key)

    return {
        "a refused settle was accepted": late_acknowledgement,
        "an accepted settle was refused": change(op("settle", answered("1")), reply("1", "0")),
        "a settle with the receipt of another": foreign_receipt,
        "a send that was stored was not": change(op("send", answered("1")), reply("1", "0")),
        "an id that was here was stored again": change(op("send", answered("0")), reply("0", "1")),
        "a send is missing": change(op("send", answered("1")), drop),
        "a receive is missing": change(op("receive", delivers), drop),
        "a receive has delivered the same twice": change(op("receive", delivers), twice),
        "two deliveries are exchanged": change(op("receive", lambda event: len(event["reply"]) > 1), swap),
        "a delivery is missing": change(op("receive", delivers), lambda events, at: events[at]["reply"].pop()),
        "a delivery count is too high": change(op("receive", delivers), raise_number(1, 1)),
        "an unsettled delivery too many": change(op("receive", delivers), raise_number(2, 1)),
        "a delivery too many was no attempt": change(op("receive", delivers), raise_number(3, 1)),
        "a nack was a release": settled_otherwise("nack", "release"),
        "a release was a nack": settled_otherwise("release", "nack"),
        "a start was an extension": settled_otherwise("start", "extend"),
        "time runs backwards": change(lambda place, _: place > 0, earlier),
        "a message came back before its lease ended": longer_lease,
        "a repeated call was answered otherwise": repeated_otherwise,
        "a purge found one more": change(op("purge"), lambda events, at: events[at].update(
            reply=[events[at]["reply"][0] + 1])),
    }


# After these changes, the trace may still be valid: received messages were purged, or had a lease of zero; settled
# messages were purged and sent again before their next delivery, or started deliveries were settled then.
UNSURE = {"a send is missing", "a receive is missing", "a receive has delivered the same twice",
          "a message came back before its lease ended", "a nack was a release", "a release was a nack",
          "a start was an extension"}


def doctored(name, events, sure=False):
    """Returns copies of a trace that must be rejected; if `sure`, only those that cannot be valid."""
    for way, doctor in doctorings().items():
        if sure and way in UNSURE:
            continue
        changed = copy.deepcopy(events)
        doctor(changed)
        if changed != events:
            yield f"{name}: {way}", False, changed


# --- Checking


def check(traces, at_once=200, with_ledger=True):
    """Runs TLC. Returns whether all results are as expected, and its output."""
    os.makedirs(OUT, exist_ok=True)
    # Several may run at the same time.
    with tempfile.TemporaryDirectory(dir=OUT) as out:
        write(out, traces, at_once, with_ledger)
        java, *options = tlaplus.java(out)
        command = [java, f"-DTLA-Library={out}", *options, "tlc2.TLC", "-deadlock", "-workers", "1",
                   "-metadir", os.path.join(out, "states"), "-config", os.path.join(out, "PillarboxTrace.cfg"),
                   "PillarboxTrace.tla"]
        code, output = tlaplus.execute(command, cwd=tlaplus.SPECS, text=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
    with open(os.path.join(OUT, "PillarboxTrace.log"), "w") as file:
        file.write(output)
    is_right = code == 0 and "No error has been found" in output
    return is_right, output


def explain(output, traces):
    """Returns the trace with an unexpected result, and the event at which it was found."""
    violated = re.search(r"Invariant (\w+) is violated", output)
    which = re.findall(r"/\\ trace = (\d+)", output)
    places = re.findall(r"/\\ place = (\d+)", output)
    verdicts = re.findall(r'/\\ verdict = "(.*)"', output)
    if not (violated and which):
        return output.strip() or "TLC printed nothing: is JAVA a Java?"
    name, _, events = traces[int(which[-1]) - 1]
    place = int(places[-1]) - 2
    event = json.dumps(events[place], ensure_ascii=False) if 0 <= place < len(events) else "(none)"
    verdict = verdicts[-1] if verdicts else ""
    wrong = "must be accepted and is not" if violated.group(1) == "GoodAccepted" else "must be rejected and is not"
    return f"{name} {wrong}: event {place + 1} of {len(events)}: {verdict or 'accepted'}\n  {event}"


# Operations of the specification.
OPERATIONS = {"send", "receive", "settle", "release", "purge", "look", "forget"}


def read(path, are_calls):
    """Returns the events of a file. Exits if it has none."""
    try:
        with open(path) as file:
            events = json.load(file)
        if are_calls:
            calls = Calls()
            events = [event for call in events if (event := calls.event(call)) is not None]
        if not isinstance(events, list) or not events:
            raise ValueError("no list of events, or an empty one")
        for number, event in enumerate(events, 1):
            if not isinstance(event, dict) or event.get("op") not in OPERATIONS:
                raise ValueError(f"event {number} has no operation of {', '.join(sorted(OPERATIONS))}")
            if type(event.get("at")) is not int or event["at"] < 0:
                raise ValueError(f"event {number} has no whole number of microseconds in 'at'")
        # Other missing fields are found by writing the trace.
        with tempfile.TemporaryDirectory() as out:
            write(out, [("", True, events)], 200, False)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        sys.exit(f"{path} is not a trace{' of calls' if are_calls else ''}: {reason}")
    return events


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--rejected", nargs="+", default=[], metavar="FILE", help="these must be rejected")
    parser.add_argument("--doctored", action="store_true", help="doctored copies must be rejected")
    parser.add_argument("--calls", action="store_true", help="the files have calls as the server saw them")
    arguments = parser.parse_args()
    traces, ways = [], set()
    real = arguments.calls
    for path in arguments.files:
        events = read(path, real)
        name = os.path.basename(path)
        traces.append((name, True, events))
        if arguments.doctored or real:
            changed = list(doctored(name, events, sure=real))
            ways |= {title.split(": ", 1)[1] for title, _, _ in changed}
            traces += changed
    for path in arguments.rejected:
        traces.append((os.path.basename(path), False, read(path, False)))
    if not traces:
        parser.error("name the files to check")
    is_right, output = check(traces, with_ledger=not real)
    good = sum(is_good for _, is_good, _ in traces)
    if not is_right:
        print(explain(output, traces))
        return 1
    steps = sum(len(events) for _, _, events in traces)
    known = len(arguments.rejected)
    print(f"{good} traces accepted; {len(traces) - good - known} doctored ones rejected, in {len(ways)} ways; "
          f"{known} of former defects rejected; {steps} events")
    return 0


if __name__ == "__main__":
    tlaplus.program(main)
