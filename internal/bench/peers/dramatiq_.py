"""dramatiq 2.2 on Redis.

    python dramatiq_.py PORT CALLERS BATCH MILLIS

The callers are threads that send a message to an actor; a `Worker` in the same process, with
threads of its own, runs it, and it does nothing. A caller goes on when as many messages were
acknowledged, which is a round trip for each. What outlives the server is up to the server.

dramatiq has no call for several messages: those of a batch are sent one by one. The worker fetches
several at a time, twice as many as it has threads, as is its default. It has 8 threads, its
default, or as many as there are callers; for 64 callers, 4 and 16 were as fast, 1, 32 and 64
slower.

The worker asks for messages all the time: when there was none it waits, by default for 5 ms and
then longer and longer up to a second. Here the longest is 2 ms (`worker_timeout`), which makes it
sleep for 1 ms; by default one caller has 116 cycles a second, and 64 are a little slower. What the
process does when it is idle is not measured.

Like for like: a message is kept until it is acknowledged, and comes back if the process stops
giving signs of life for a minute. It does more: messages carry options, and its usual middleware is
in place (retries, limits of age and time, callbacks, pipelines). Messages are JSON.
"""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import peer

WORKERS = 8
WORKER_TIMEOUT_MILLIS = 2


class Watch(dramatiq.Middleware):
    """Tells when a message was acknowledged."""

    def after_ack(self, broker, message):
        peer.handled()

    def after_nack(self, broker, message):
        peer.fail(f"message {message.message_id} failed")


workers = peer.workers(WORKERS)
# redis-py would stop at 100 connections.
broker = RedisBroker(
    host=peer.HOST, port=int(peer.PLACE), max_connections=peer.CALLERS + workers + 10
)
broker.add_middleware(Watch())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=0)
def job(seq, body):
    peer.handle(seq, body)


def cycle(numbers):
    for seq in numbers:
        job.send(seq, peer.BODY)
    peer.until_handled()


def left():
    return broker.do_qsize(job.queue_name)


worker = dramatiq.Worker(broker, worker_threads=workers, worker_timeout=WORKER_TIMEOUT_MILLIS)
worker.start()
peer.run(
    peer.version_of("dramatiq"),
    "AOF everysec; one process, one worker thread per caller, at most 8; polls every ms",
    [cycle] * peer.CALLERS,
    left,
)
