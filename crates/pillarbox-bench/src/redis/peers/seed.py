"""The mailbox of the specification that this project began with, in Python with Lua scripts.

    python seed.py PORT CALLERS BATCH MILLIS

Says "ready", waits for a line, runs, and says what it did as a line of JSON. What it leaves out and
does more is told in script.rs.
"""

import json
import os
import sys
import threading
import time
import uuid

import redis

PORT, CALLERS, BATCH, MILLIS = map(int, sys.argv[1:])
BODY = 256
LEASE = 30

PENDING, INVISIBLE, DATA, META = (
    "{queue:bench}:" + part for part in ("pending", "invisible", "data", "meta")
)

# Takes the oldest message, hides it, counts the delivery, and notes the handle that may settle it.
RECEIVE = """
local id = redis.call('RPOP', KEYS[1])
if not id then return nil end
redis.call('ZADD', KEYS[2], ARGV[1], id)
local data = redis.call('HGET', KEYS[3], id)
local count = redis.call('HINCRBY', KEYS[4], id .. ':count', 1)
redis.call('HSET', KEYS[4], id .. ':handle', ARGV[2])
return {id, data, count}
"""

# Deletes a message, if the handle is that of its last delivery and nobody took it back.
ACKNOWLEDGE = """
if redis.call('HGET', KEYS[3], ARGV[1] .. ':handle') ~= ARGV[2] then return 0 end
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1] .. ':count', ARGV[1] .. ':handle')
return 1
"""


class Mailbox:
    """One client for all threads, each of which takes a connection of its pool."""

    def __init__(self):
        self.client = redis.Redis(host="127.0.0.1", port=PORT, max_connections=CALLERS + 1)
        self.receive_sha = self.client.script_load(RECEIVE)
        self.acknowledge_sha = self.client.script_load(ACKNOWLEDGE)

    def send(self, bodies):
        pipe = self.client.pipeline(transaction=True)
        for body in bodies:
            identity = str(uuid.uuid4())
            pipe.hset(DATA, identity, body)
            pipe.lpush(PENDING, identity)
        pipe.execute()

    def receive(self, most):
        pipe = self.client.pipeline(transaction=False)
        handles = [uuid.uuid4().hex for _ in range(most)]
        for handle in handles:
            expiry = time.time() + LEASE
            pipe.evalsha(self.receive_sha, 4, PENDING, INVISIBLE, DATA, META, expiry, handle)
        answers = zip(pipe.execute(), handles)
        return [(answer[0], answer[1], handle) for answer, handle in answers if answer]

    def acknowledge(self, messages):
        pipe = self.client.pipeline(transaction=False)
        for identity, _, handle in messages:
            pipe.evalsha(self.acknowledge_sha, 3, INVISIBLE, DATA, META, identity, handle)
        if any(answer != 1 for answer in pipe.execute()):
            raise RuntimeError("an acknowledgement was refused")


class Numbers:
    def __init__(self):
        self.lock = threading.Lock()
        self.next = 0

    def take(self):
        with self.lock:
            first = self.next
            self.next += BATCH
        return range(first, first + BATCH)


def caller(mailbox, numbers, until, tallies):
    count = total = 0
    while time.monotonic() < until:
        mailbox.send([seq.to_bytes(8, "little").ljust(BODY, b"x") for seq in numbers.take()])
        missing = BATCH
        while missing:
            messages = mailbox.receive(missing)
            if not messages:
                raise RuntimeError("a message is lost")
            for _, body, _ in messages:
                if len(body) != BODY:
                    raise RuntimeError(f"a body of {len(body)}")
                count += 1
                total += int.from_bytes(body[:8], "little")
            missing -= len(messages)
            mailbox.acknowledge(messages)
    tallies.append((count, total))


def fail(failure):
    print(f"a caller failed: {failure.exc_value}", file=sys.stderr, flush=True)
    os._exit(1)


def main():
    threading.excepthook = fail
    mailbox, numbers, tallies = Mailbox(), Numbers(), []
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    until = start + MILLIS / 1000
    threads = [
        threading.Thread(target=caller, args=(mailbox, numbers, until, tallies))
        for _ in range(CALLERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    outcome = {
        "count": sum(count for count, _ in tallies),
        "sum": sum(total for _, total in tallies),
        "sent": numbers.next,
        "left": mailbox.client.hlen(DATA) + mailbox.client.hlen(META),
        "seconds": seconds,
    }
    print(json.dumps(outcome), flush=True)


main()
