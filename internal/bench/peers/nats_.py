"""NATS JetStream: nats-server 2.9 of Debian, with nats-py 2.16.

    python nats_.py PORT CALLERS BATCH MILLIS

A caller is a task of asyncio; all share one connection, for 2 and 4 were no faster. The stream is
kept in a file and has work-queue retention, so that a message is removed when it is acknowledged;
one durable pull consumer, with explicit acknowledgement, is shared by all. A cycle is `publish`,
`fetch` and `ack_sync`. The publishes of a batch go without waiting for each other, and are awaited
together, and so are its acknowledgements; `fetch` takes what is there, up to a batch.

Acknowledgements are awaited, for else a message may still be on the server when a cycle ends. Plain
`ack`, which does not wait, was faster by a quarter or more for 64 callers.

Not like for like: a message is in the server's file when it is published, but that file is not
synced for each; a timer does so now and then, and version 2.9 has no setting for it. A message that
is not acknowledged comes back after 30 s. It does more: messages have subjects, and streams can be
replicated, which this one is not.
"""

import asyncio

import nats
from nats.js import api

import peer

STREAM = CONSUMER = SUBJECT = "bench"
# A message that does not arrive within this time is lost.
WAIT_SECONDS = 30


async def caller(stream):
    messages = await stream.pull_subscribe_bind(CONSUMER, STREAM)

    async def cycle(numbers):
        bodies = [peer.message(seq).encode() for seq in numbers]
        await asyncio.gather(*(stream.publish(SUBJECT, body) for body in bodies))
        missing = len(bodies)
        while missing:
            fetched = await messages.fetch(missing, timeout=WAIT_SECONDS)
            for message in fetched:
                peer.handle_message(message.data.decode())
            await asyncio.gather(*(message.ack_sync() for message in fetched))
            missing -= len(fetched)

    return cycle


async def main():
    connection = await nats.connect(f"nats://{peer.HOST}:{peer.PLACE}")
    stream = connection.jetstream()
    await stream.add_stream(
        name=STREAM,
        subjects=[SUBJECT],
        storage=api.StorageType.FILE,
        retention=api.RetentionPolicy.WORK_QUEUE,
    )
    await stream.add_consumer(
        STREAM,
        durable_name=CONSUMER,
        ack_policy=api.AckPolicy.EXPLICIT,
        max_ack_pending=max(1000, peer.CALLERS * peer.BATCH),
    )

    async def left():
        return (await stream.stream_info(STREAM)).state.messages

    version = connection.connected_server_version
    await peer.run_async(
        f"{version.major}.{version.minor}.{version.patch}, nats-py {peer.version_of('nats-py')}",
        "work-queue stream in a file, not synced per message; acks awaited",
        [await caller(stream) for _ in range(peer.CALLERS)],
        left,
    )


asyncio.run(main())
