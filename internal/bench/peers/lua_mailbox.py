"""The Redis mailbox of the specification that Pillarbox implements, in Python with Lua scripts.

A send is HSET and LPUSH in one transaction; a receive and an acknowledgement are a script for each
message. Those of a batch go in one pipeline, which the specification does not ask for. With hiredis;
a caller is a thread with a connection. It leaves out what the reaper does, which is a thread of its
own there.
"""

import time
import uuid

import redis

import peer

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

client = redis.Redis(
    host="127.0.0.1", port=int(peer.PLACE), max_connections=peer.CALLERS + 1, decode_responses=True
)
receive_sha = client.script_load(RECEIVE)
acknowledge_sha = client.script_load(ACKNOWLEDGE)


def send(numbers):
    pipe = client.pipeline(transaction=True)
    for seq in numbers:
        identity = str(uuid.uuid4())
        pipe.hset(DATA, identity, peer.message(seq))
        pipe.lpush(PENDING, identity)
    pipe.execute()


def receive(most):
    pipe = client.pipeline(transaction=False)
    handles = [uuid.uuid4().hex for _ in range(most)]
    for handle in handles:
        expiry = time.time() + LEASE
        pipe.evalsha(receive_sha, 4, PENDING, INVISIBLE, DATA, META, expiry, handle)
    answers = zip(pipe.execute(), handles)
    return [(answer[0], answer[1], handle) for answer, handle in answers if answer]


def acknowledge(messages):
    pipe = client.pipeline(transaction=False)
    for identity, _, handle in messages:
        pipe.evalsha(acknowledge_sha, 3, INVISIBLE, DATA, META, identity, handle)
    if any(answer != 1 for answer in pipe.execute()):
        raise RuntimeError("an acknowledgement was refused")


def cycle(numbers):
    send(numbers)
    missing = peer.BATCH
    while missing:
        messages = receive(missing)
        if not messages:
            raise RuntimeError("a message is lost")
        for _, text, _ in messages:
            peer.handle_message(text)
        acknowledge(messages)
        missing -= len(messages)


peer.run(
    f"redis-py {peer.version_of('redis')}",
    "AOF everysec; one script call per message, one thread per caller",
    [cycle] * peer.CALLERS,
    left=lambda: client.hlen(DATA) + client.hlen(META),
)
