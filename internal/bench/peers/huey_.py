"""huey 3.5 on SQLite.

    python huey_.py FILE CALLERS BATCH MILLIS

The callers are threads that call a task; the threads of a `Consumer` in the same process run it,
and it does nothing. A caller goes on when as many tasks are complete, of which huey's signal tells.

huey has no call for several tasks: those of a batch are enqueued one by one, each in a transaction
of its own. Each transaction is on the disk before it returns: journal_mode WAL, as huey has it, and
synchronous FULL by its option `fsync`.

All threads share one connection behind a lock, which is huey's way. There are 2 threads that work,
or 1 for one caller; for 64 callers, 1, 2 and 4 were equally fast, 8 and 16 a little slower. They
look for tasks all the time, for SQLite cannot wake them: after 1 ms without a task, and less and
less often up to 10 ms. huey's own figures are 100 ms and 10 s, with which a lone caller would
mostly wait. What the process does when it is idle is not measured.

Not like for like, for it does less: it deletes a task when a thread takes it, before it is run, so
that a task whose process dies is lost (at most once). There is no receipt and no acknowledgement,
hence two writing transactions for a message instead of three. It does more: it looks whether a task
was revoked, which takes a lock on the file for a third transaction that writes nothing, and pickles
tasks. Results are not stored, for the task has none.
"""

import huey
from huey import signals

import peer

WORKERS = 2

queue = huey.SqliteHuey("bench", filename=peer.PLACE, journal_mode="wal", fsync=True)


@queue.task()
def job(seq, body):
    peer.handle(seq, body)


@queue.signal(signals.SIGNAL_COMPLETE)
def complete(*_):
    peer.handled()


@queue.signal(signals.SIGNAL_ERROR)
def error(_signal, _task, exception):
    peer.fail(f"a task failed: {exception!r}")


def cycle(numbers):
    for seq in numbers:
        job(seq, peer.BODY)
    peer.until_handled()


def left():
    return len(queue) + queue.scheduled_count() + queue.result_count()


workers = peer.workers(WORKERS)
consumer = queue.create_consumer(
    workers=workers, periodic=False, initial_delay=0.001, max_delay=0.01
)
consumer.start()
peer.run(
    peer.version_of("huey"),
    "WAL, synchronous=FULL; one consumer thread per caller, at most 2; at-most-once delivery",
    [cycle] * peer.CALLERS,
    left,
)
