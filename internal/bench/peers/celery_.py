"""Celery 5.7 on Redis.

    python celery_.py PORT CALLERS BATCH MILLIS

The callers are threads that call `delay` on a task; a worker in a thread of the same process, with
a pool of threads, runs it, and it does nothing. The worker is started by `start_worker` of
celery.contrib.testing, for the command line is for a process of its own. A caller goes on when as
many tasks were acknowledged, which is a round trip for each. What outlives the server is up to the
server.

Acknowledgement is late (`task_acks_late`), so that a task is kept until it has been run; Celery's
default is to acknowledge before, which may lose one. Results are ignored, and there is no result
backend. Celery has no call for several tasks: those of a batch are sent one by one. The callers
share 10 connections, its default.

The pool has 4 threads, or as many as there are callers; for 64 callers, 2 were as fast, 1, 8 and
the pool without threads (solo) slower. The worker prefetches 4 tasks for each thread, its default;
1 was as fast. A pool of processes, Celery's default, is not measured: the worker would not be in
the process, and could use more cores.

Not like for like: a task comes back only after the visibility timeout, which is an hour by default,
and there is no receipt. It does more: messages carry headers and options, as JSON within base64,
for any broker. Heartbeats, gossip and mingling of workers are off, as `start_worker` has it.
"""

import celery
import redis
from celery.contrib.testing.worker import start_worker
from celery.worker.request import Request

import peer

WORKERS = 4

app = celery.Celery("bench", broker=f"redis://{peer.HOST}:{peer.PLACE}/0")
app.conf.update(task_acks_late=True, task_ignore_result=True)


class Watched(Request):
    """Tells when a task was acknowledged."""

    def acknowledge(self):
        super().acknowledge()
        peer.handled()


class Task(celery.Task):
    Request = Watched


@app.task(base=Task)
def job(seq, body):
    peer.handle(seq, body)


def cycle(numbers):
    for seq in numbers:
        job.delay(seq, peer.BODY)
    peer.until_handled()


def left():
    client = redis.Redis(host=peer.HOST, port=int(peer.PLACE))
    waiting = client.llen(app.conf.task_default_queue)
    return waiting + client.hlen("unacked") + client.zcard("unacked_index")


workers = peer.workers(WORKERS)
with start_worker(app, concurrency=workers, pool="threads", perform_ping_check=False):
    peer.run(
        peer.version_of("celery"),
        "AOF everysec; acks_late; one process, one worker thread per caller, at most 4",
        [cycle] * peer.CALLERS,
        left,
    )
