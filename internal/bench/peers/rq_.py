"""rq 2.12 on Redis.

    python rq_.py PORT CALLERS BATCH MILLIS

The callers are threads that enqueue a job; a `SimpleWorker`, a thread of the same process, runs it,
and it does nothing. A caller goes on when as many jobs were removed. One job is `Queue.enqueue`, a
batch is `Queue.enqueue_many`, which is one pipeline. What outlives the server is up to the server.

There is one worker. For 64 callers, 2 in threads were as fast, 4 and 8 slower: it is Python that is
busy, in one process. rq has no threads of its own, its usual `Worker` forks for each job, and its
`WorkerPool` starts processes, which could use more cores than this.

For a worker in a thread, signal handlers are not installed, and jobs have no timeout, which would
otherwise cost a thread for each job. Jobs are removed when they are done (`result_ttl=0`).

Not like for like: a job of a worker that died is found by a registry's maintenance, and then counts
as failed. It does much more: it keeps a hash for each job and each execution, registries, the
worker's state and heartbeats, and looks for dependents. A job takes some 27 round trips of the
worker. Arguments are pickled; a description of the call is stored beside them, as it is by default.
"""

import threading
import time

import redis
import rq
from rq.timeouts import TimerDeathPenalty
from rq.worker import WorkerStatus

import peer

WORKERS = 1
FUNCTION = "peer.handle"
NO_TIMEOUT = -1


class Worker(rq.SimpleWorker):
    """A worker for a thread, which tells when a job is done and removed."""

    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self):
        """They are for the main thread alone."""

    def perform_job(self, job, queue):
        if not super().perform_job(job, queue):
            peer.fail(f"job {job.id} failed")
        peer.handled()
        return True


def connect():
    # redis-py would stop at 100 connections.
    return redis.Redis(host=peer.HOST, port=int(peer.PLACE), max_connections=peer.CALLERS + 10)


def work(worker):
    worker.work(logging_level="WARNING")
    peer.fail("a worker has ended")


def one(numbers):
    queue.enqueue(FUNCTION, numbers[0], peer.BODY, job_timeout=NO_TIMEOUT, result_ttl=0)
    peer.until_handled()


def many(numbers):
    queue.enqueue_many(
        queue.prepare_data(FUNCTION, (seq, peer.BODY), timeout=NO_TIMEOUT, result_ttl=0)
        for seq in numbers
    )
    peer.until_handled()


def left():
    registries = (
        queue.started_job_registry,
        queue.finished_job_registry,
        queue.failed_job_registry,
    )
    jobs = sum(1 for _ in client.scan_iter("rq:job:*"))
    waiting = len(queue) + client.llen(queue.intermediate_queue_key)
    return jobs + waiting + sum(map(len, registries))


client = connect()
queue = rq.Queue("bench", connection=client)
workers = [Worker([queue], connection=connect()) for _ in range(peer.workers(WORKERS))]
for worker in workers:
    threading.Thread(target=work, args=(worker,), daemon=True).start()
while any(worker.get_state() != WorkerStatus.IDLE for worker in workers):
    time.sleep(0.01)
peer.run(
    peer.version_of("rq"),
    "AOF everysec; one SimpleWorker in the process; completed jobs are removed",
    [one if peer.BATCH == 1 else many] * peer.CALLERS,
    left,
)
