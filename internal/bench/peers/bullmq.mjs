// BullMQ: callers that add jobs, and a worker with a no-op handler.
//
//   node bullmq.mjs MODULES PORT CALLERS BATCH MILLIS
//
// MODULES is the directory in which bullmq was installed. Prints "ready", waits for a line, runs, and
// prints the result as a line of JSON. src/peers.rs lists what BullMQ does more or less.

import { createRequire } from 'node:module';
import { once } from 'node:events';

const [modules, port, callers, batch, millis] = process.argv.slice(2);
const { Queue, Worker } = createRequire(`${modules}/`)('bullmq');

const BODY = 256;
// Of 10, 25, 50, 100 and 256, this was the quickest for 256 callers.
const MOST_AT_ONCE = 100;
const name = 'bench';
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const perCall = Number(batch);

// What was handled, and those who wait for it.
let count = 0;
let sum = 0;
let free = 0;
const waiting = [];

function handled() {
  const first = waiting[0];
  free += 1;
  if (first && free >= perCall) {
    free -= perCall;
    waiting.shift();
    first();
  }
}

function untilHandled() {
  if (free >= perCall) {
    free -= perCall;
    return Promise.resolve();
  }
  return new Promise((resolve) => waiting.push(resolve));
}

const queue = new Queue(name, {
  connection,
  defaultJobOptions: { removeOnComplete: true, removeOnFail: true },
});
const worker = new Worker(
  name,
  async (job) => {
    if (job.data.body.length !== BODY) throw new Error(`a body of ${job.data.body.length}`);
    count += 1;
    sum += job.data.seq;
  },
  { connection, concurrency: Math.min(Number(callers), MOST_AT_ONCE) },
);
const failed = (error) => {
  console.error(error);
  process.exit(1);
};
worker.on('error', failed);
worker.on('failed', (_, error) => failed(error));
// Emitted once the server has marked the job as completed and removed it.
worker.on('completed', handled);
await Promise.all([queue.waitUntilReady(), worker.waitUntilReady()]);

console.log('ready');
await once(process.stdin, 'data');

let next = 0;
const latencies = [];
const start = performance.now();
const until = start + Number(millis);

async function caller() {
  for (let began = start; began < until; ) {
    const jobs = [];
    for (let i = 0; i < perCall; i += 1) {
      const seq = next;
      next += 1;
      jobs.push({ name: 'job', data: { seq, body: 'x'.repeat(BODY) } });
    }
    if (perCall === 1) {
      await queue.add(jobs[0].name, jobs[0].data);
    } else {
      await queue.addBulk(jobs);
    }
    await untilHandled();
    const now = performance.now();
    latencies.push(Math.round((now - began) * 1000));
    began = now;
  }
}

await Promise.all(Array.from({ length: Number(callers) }, caller));
const seconds = (performance.now() - start) / 1000;

const counts = await queue.getJobCounts();
const left = Object.values(counts).reduce((all, some) => all + some, 0);
// At most `most` latencies, evenly spaced by rank, including the smallest and the largest.
const most = 10_000;
latencies.sort((a, b) => a - b);
const ranks = Array.from({ length: Math.min(most, latencies.length) }, (_, rank) =>
  latencies.length <= most ? rank : Math.floor((rank * (latencies.length - 1)) / (most - 1)),
);
const { version } = createRequire(`${modules}/`)('bullmq/package.json');
console.log(
  JSON.stringify({
    count,
    sum,
    sent: next,
    left,
    seconds,
    latencies_us: ranks.map((rank) => latencies[rank]),
    version,
    settings: 'AOF everysec; one worker, one concurrent job per caller, at most 100; completed jobs are removed',
  }),
);
await worker.close(true);
await queue.close();
process.exit(0);
