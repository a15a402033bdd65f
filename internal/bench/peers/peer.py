"""What the programs share that measure peers written in Python.

    python PROGRAM PLACE CALLERS BATCH MILLIS

PLACE is the port of a server on the loopback, or the path of a SQLite file to create. A program
prints "ready", waits for a line, runs, and prints the result as a line of JSON.

CALLERS callers loop until the time is up: each sends a batch, and continues when as many messages
were handled and removed, not necessarily its own. Messages that are under way when the time is up
are handled too, and count. If a peer has its own worker, that handles the messages, in the same
process; otherwise the callers receive and acknowledge them. A message is its sequence number and 256
bytes.
"""

import asyncio
import collections
import importlib.metadata
import json
import os
import sys
import threading
import time
import traceback

if len(sys.argv) != 5:
    sys.exit(f"usage: {sys.argv[0]} PLACE CALLERS BATCH MILLIS")

PLACE = sys.argv[1]
HOST = "127.0.0.1"
CALLERS, BATCH, MILLIS = map(int, sys.argv[2:])
BODY = "x" * 256
MOST_LATENCIES = 10_000
# A run that takes so much longer than it should has lost a message.
PATIENCE_SECONDS = 60


def fail(reason):
    """Ends the program at once, from whatever thread."""
    print(f"{os.path.basename(sys.argv[0])}: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def _fail_with_thread(failure):
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    fail(f"a thread failed: {failure.exc_value!r}")


threading.excepthook = _fail_with_thread


class Numbers:
    """Hands out sequence numbers, a batch at a time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.next = 0

    def take(self):
        with self.lock:
            first = self.next
            self.next += BATCH
        return range(first, first + BATCH)


class Tally:
    """What was handled."""

    def __init__(self):
        self.lock = threading.Lock()
        self.count = 0
        self.sum = 0

    def add(self, seq, body):
        if len(body) != len(BODY):
            fail(f"a body of {len(body)}")
        with self.lock:
            self.count += 1
            self.sum += seq


class Handled:
    """Lets callers wait, in turn, until a batch was handled that none before them has claimed."""

    def __init__(self):
        self.lock = threading.Lock()
        self.free = 0
        self.waiting = collections.deque()

    def one(self):
        with self.lock:
            self.free += 1
            if not self.waiting or self.free < BATCH:
                return
            self.free -= BATCH
            first = self.waiting.popleft()
        first.release()

    def wait(self):
        with self.lock:
            if self.free >= BATCH:
                self.free -= BATCH
                return
            mine = threading.Lock()
            mine.acquire()
            self.waiting.append(mine)
        mine.acquire()


numbers = Numbers()
tally = Tally()
_handled = Handled()


def handle(seq, body):
    """What a peer's worker does with a message."""
    tally.add(seq, body)


def handled():
    """Says that one more message was handled and is no longer on the server."""
    _handled.one()


def until_handled():
    """Waits until a batch was handled."""
    _handled.wait()


def message(seq):
    """The message as one text, for peers whose messages have no fields."""
    return f"{seq}:{BODY}"


def handle_message(text):
    """Handles what `message` has made."""
    seq, _, body = text.partition(":")
    tally.add(int(seq), body)


def version_of(package):
    """The version of an installed package."""
    return importlib.metadata.version(package)


def workers(most):
    """How many workers there are, where more than `most` do not help."""
    return min(CALLERS, most)


def _begin():
    print("ready", flush=True)
    if not sys.stdin.readline():
        fail("nobody says go")
    seconds = MILLIS / 1000 + PATIENCE_SECONDS
    watchdog = threading.Timer(
        seconds,
        lambda: fail(f"{tally.count} of {numbers.next} messages handled after {seconds} s"),
    )
    watchdog.daemon = True
    watchdog.start()
    return time.monotonic()


def _sample(latencies):
    """Returns at most MOST_LATENCIES, evenly spaced by rank, including the smallest and the largest."""
    latencies.sort()
    if len(latencies) <= MOST_LATENCIES:
        return latencies
    last = len(latencies) - 1
    return [latencies[i * last // (MOST_LATENCIES - 1)] for i in range(MOST_LATENCIES)]


def _tell(version, settings, seconds, latencies, left):
    outcome = {
        "count": tally.count,
        "sum": tally.sum,
        "sent": numbers.next,
        "left": left,
        "seconds": seconds,
        "latencies_us": _sample(latencies),
        "settings": settings,
        "version": version,
    }
    print(json.dumps(outcome), flush=True)
    # Without waiting for the threads of a worker, some of which sleep for seconds.
    os._exit(0)


def _micros(since):
    return round((time.monotonic() - since) * 1_000_000)


def run(version, settings, cycles, left, settle=None):
    """Runs callers that are threads, and says what they did.

    A caller has one of the `cycles`, a function that sends the messages of these numbers, and
    returns when as many were handled. `settle` is for what must be done before the time stops;
    `left` counts what is still on the server.
    """
    go = threading.Event()
    until = 0
    latencies = []

    def caller(cycle):
        mine = []
        go.wait()
        while (began := time.monotonic()) < until:
            cycle(numbers.take())
            mine.append(_micros(began))
        latencies.extend(mine)

    threads = [threading.Thread(target=caller, args=(cycle,), daemon=True) for cycle in cycles]
    for thread in threads:
        thread.start()
    start = _begin()
    until = start + MILLIS / 1000
    go.set()
    for thread in threads:
        thread.join()
    if settle:
        settle()
    seconds = time.monotonic() - start
    _tell(version, settings, seconds, latencies, left())


async def run_async(version, settings, cycles, left):
    """The same with callers that are tasks."""
    latencies = []

    async def caller(cycle):
        while (began := time.monotonic()) < until:
            await cycle(numbers.take())
            latencies.append(_micros(began))

    start = _begin()
    until = start + MILLIS / 1000
    await asyncio.gather(*map(caller, cycles))
    seconds = time.monotonic() - start
    _tell(version, settings, seconds, latencies, await left())
