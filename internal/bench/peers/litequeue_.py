"""litequeue 0.9 on SQLite.

    python litequeue_.py FILE CALLERS BATCH MILLIS

A cycle is `put`, `pop` and `done`. The puts of a batch are in one transaction, and so are the
dones, by the queue's own `transaction`; `pop` has a transaction of its own and takes one message.

The callers are threads that share one queue, which is one connection, behind a lock. A connection
for each, which then wait for each other in SQLite, was 2 to 3 times slower for 64 callers.

Each transaction is on the disk before it returns: journal_mode WAL, as litequeue has it, and
synchronous FULL, for which litequeue has NORMAL. That is set on its connection.

Not like for like: a message whose receiver died stays locked until a program asks for locked
messages; there are no delivery counts, no receipts, and no blocking receive. A message that is done
stays in the table until `prune`, which is called once, after the last cycle, and is part of the
measured time. Nothing is pruned within the window.
"""

import threading

import litequeue

import peer

queue = litequeue.LiteQueue(peer.PLACE)
queue.conn.execute("PRAGMA synchronous = FULL")
lock = threading.Lock()


def put(texts):
    with lock, queue.transaction(mode="IMMEDIATE"):
        for text in texts:
            queue.put(text)


def pop():
    with lock:
        message = queue.pop()
    if message is None:
        raise RuntimeError("a message is lost")
    return message


def done(messages):
    with lock, queue.transaction(mode="IMMEDIATE"):
        for message in messages:
            queue.done(message.message_id)


def cycle(numbers):
    put([peer.message(seq) for seq in numbers])
    messages = [pop() for _ in numbers]
    for message in messages:
        peer.handle_message(message.data)
    done(messages)


def left():
    return queue.conn.execute(f"SELECT count(*) FROM {queue.table}").fetchone()[0]


peer.run(
    peer.version_of("litequeue"),
    "WAL, synchronous=FULL; one connection for all callers",
    [cycle] * peer.CALLERS,
    left,
    settle=queue.prune,
)
