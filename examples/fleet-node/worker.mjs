// Installs firmware on devices that the loop "firmware" hands out. Ends on
// SIGTERM and SIGINT, with the device in hand finished.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

const LOOP = 'firmware';
const HOLDER = `${hostname()}/${randomUUID()}`;
const TTL = seconds('FLEET_TTL', 30);
const POLL = seconds('FLEET_POLL', 5);
const INSTALL = seconds('FLEET_INSTALL', 0.2);

// Epochs are 64-bit numbers: strings would compare as text, doubles would round.
pg.types.setTypeParser(pg.types.builtins.INT8, BigInt);

const stopping = new AbortController();
process.once('SIGTERM', () => stopping.abort());
process.once('SIGINT', () => stopping.abort());

function seconds(name, fallback) {
  return 1000 * Number(process.env[name] ?? fallback);
}

async function nap(ms) {
  await sleep(ms, undefined, { signal: stopping.signal }).catch(() => {});
}

// --- the connection ---------------------------------------------------------

let client;

async function connect() {
  for (let pause = 100; ; pause = Math.min(2 * pause, 30_000)) {
    const fresh = new pg.Client();
    fresh.on('error', () => { if (client === fresh) client = undefined; });
    try {
      await fresh.connect();
      return fresh;
    } catch (error) {
      if (stopping.signal.aborted) throw error;
      console.error(`no connection: ${error.message}`);
      await nap(pause);
    }
  }
}

// Did the server answer, or do we not know what became of the statement?
function isAnswer(error) {
  return error instanceof pg.DatabaseError && !/^(08|53|57P)/.test(error.code);
}

// Calls f with a connection, and again with another while it is lost. All that
// is done here may be sent again: a claim whose answer was lost expires, and a
// completion that had committed is refused with RC017.
async function withClient(f) {
  for (;;) {
    client ??= await connect();
    const current = client;
    try {
      return await f(current);
    } catch (error) {
      const lost = error instanceof pg.DatabaseError ? !isAnswer(error) : client !== current;
      if (!lost) throw error;
      console.error(`connection lost: ${error.message}`);
      current.end().catch(() => {});
      if (client === current) client = undefined;
    }
  }
}

async function query(text, values) {
  return (await withClient((c) => c.query(text, values))).rows;
}

async function transaction(f) {
  await withClient(async (c) => {
    await c.query('BEGIN');
    try {
      await f(c);
      await c.query('COMMIT');
    } catch (error) {
      if (isAnswer(error)) await c.query('ROLLBACK');
      throw error;
    }
  });
}

// --- the work ---------------------------------------------------------------

// Stands for the call to the device. A real device would compare the epoch with
// the highest that it has seen.
async function install(device, epoch, signal) {
  await sleep(INSTALL, undefined, { signal });
}

// Does the job while the claim is extended. When the claim is lost, or cannot be
// extended in time, the job's signal says so.
async function whileExtending(claim, job) {
  const lost = new AbortController();
  const done = new AbortController();
  let deadline;
  const arm = (sentAt) => {
    clearTimeout(deadline);
    deadline = setTimeout(() => lost.abort(), sentAt + TTL - performance.now());
  };
  const extend = async () => {
    while (!lost.signal.aborted) {
      await sleep(TTL / 3, undefined, { signal: done.signal });
      const sentAt = performance.now();
      const [answer] = await query('SELECT extended FROM reconcile.extend_work($1, $2, $3, $4)',
        [LOOP, [claim.entity_id], [claim.claim_epoch], `${TTL} ms`]);
      if (answer.extended) arm(sentAt);
      else lost.abort();
    }
  };

  arm(claim.sentAt);
  const extending = extend().catch((error) => { if (!done.signal.aborted) lost.abort(error); });
  try {
    await job(lost.signal);
  } finally {
    done.abort();
    await extending;            // so that it is not in the middle of a statement
    clearTimeout(deadline);
  }
}

async function work(claim) {
  const key = [LOOP, claim.entity_id, claim.claim_epoch];
  const [device] = await query('SELECT device_id, desired, reported FROM firmware.device WHERE device_id = $1',
    [claim.entity_id]);
  const behind = device !== undefined && device.reported !== device.desired;

  if (behind) {
    try {
      await whileExtending(claim, (signal) => install(device, claim.claim_epoch, signal));
    } catch (error) {
      await query('SELECT reconcile.fail_work($1, $2, $3, $4)', [...key, error.message]);
      return;
    }
  }
  await transaction(async (c) => {
    if (behind) {
      await c.query('UPDATE firmware.device SET reported = $2 WHERE device_id = $1', [device.device_id, device.desired]);
      await c.query('INSERT INTO firmware.installed (device_id, version, claim_epoch, holder) VALUES ($1, $2, $3, $4)',
        [device.device_id, device.desired, claim.claim_epoch, HOLDER]);
    }
    await c.query('SELECT reconcile.complete_work($1, $2, $3)', key);
  });
}

while (!stopping.signal.aborted) {
  const sentAt = performance.now();
  const [claim] = await query('SELECT entity_id, claim_epoch FROM reconcile.claim_work($1, $2, 1, $3)',
    [LOOP, HOLDER, `${TTL} ms`]);
  if (claim === undefined) {
    const [{ ms }] = await query('SELECT extract(epoch FROM reconcile.next_due($1))::float8 * 1000 AS ms', [LOOP]);
    await nap(Math.min(ms ?? POLL, POLL));
    continue;
  }
  try {
    await work({ ...claim, sentAt });
  } catch (error) {
    if (error.code !== 'RC017') throw error;
    console.error(`${claim.entity_id}: claim ${claim.claim_epoch} is not ours any more`);
  }
}
await client?.end();
