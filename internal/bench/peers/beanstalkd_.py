"""beanstalkd 1.12 of Debian, with greenstalk 2.1.

    python beanstalkd_.py PORT CALLERS BATCH MILLIS

A caller is a thread with a connection. A cycle is `put`, `reserve` and `delete`, each of which
waits for the server's answer.

The server has no command for several jobs. A batch is one write with a command for each job, whose
answers are read afterwards: puts, then reserves, then deletes. greenstalk cannot do that, so it is
done here on the socket of its client. It was more than twice as fast as one command at a time for
64 callers with batches of 10; with a binlog that is synced, it is the disk that decides.

Whether jobs outlive the server is up to how it was started: they are in memory alone, unless it has
a binlog (-b), which is synced for each write with -f0, and every 50 ms by default. The reported
settings say whether there is a binlog; the server does not report how it is synced.

Not like for like: a reserved job becomes ready again after 60 s, but its receiver gets no delivery
count, and the receipt is only the job's number, which the connection that reserved the job deletes.
It does more: jobs have priorities.
"""

import greenstalk

import peer

TTR_SECONDS = 60
# A job that does not arrive within this time is lost.
WAIT_SECONDS = 30


class Client(greenstalk.Client):
    """A client that can write several commands at once."""

    def __init__(self):
        super().__init__((peer.HOST, int(peer.PLACE)), encoding=None)

    def put_many(self, bodies):
        puts = (b"put 0 0 %d %d\r\n%b\r\n" % (TTR_SECONDS, len(body), body) for body in bodies)
        self._sock.sendall(b"".join(puts))
        for _ in bodies:
            self._answer(b"INSERTED")

    def reserve_many(self, count):
        self._sock.sendall(b"reserve-with-timeout %d\r\n" % WAIT_SECONDS * count)
        jobs = []
        for _ in range(count):
            identity, size = map(int, self._answer(b"RESERVED"))
            jobs.append(greenstalk.Job(identity, self._read_chunk(size)))
        return jobs

    def delete_many(self, jobs):
        self._sock.sendall(b"".join(b"delete %d\r\n" % job.id for job in jobs))
        for _ in jobs:
            self._answer(b"DELETED")

    def _answer(self, expected):
        return greenstalk._parse_response(self._reader.readline(), expected)


def caller():
    client = Client()

    def one(numbers):
        client.put(peer.message(numbers[0]).encode(), ttr=TTR_SECONDS)
        job = client.reserve(timeout=WAIT_SECONDS)
        peer.handle_message(job.body.decode())
        client.delete(job)

    def many(numbers):
        client.put_many([peer.message(seq).encode() for seq in numbers])
        jobs = client.reserve_many(len(numbers))
        for job in jobs:
            peer.handle_message(job.body.decode())
        client.delete_many(jobs)

    return one if peer.BATCH == 1 else many


def left():
    stats = client.stats()
    states = ("ready", "reserved", "delayed", "buried")
    return sum(stats[f"current-jobs-{state}"] for state in states)


client = Client()
stats = client.stats()
has_binlog = stats["binlog-current-index"] > 0
peer.run(
    f"{stats['version']}, greenstalk {peer.version_of('greenstalk')}",
    f"one write per batch; {'binlog' if has_binlog else 'in memory'}",
    [caller() for _ in range(peer.CALLERS)],
    left,
)
