// Makes a report each minute, while it is the leader. Gives the lease back on
// SIGTERM and SIGINT.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

const LEASE = 'nightly';
const HOLDER = `${hostname()}/${randomUUID()}`;
const TTL = 1000 * Number(process.env.CRON_TTL ?? 15);
const EVERY = 1000 * Number(process.env.CRON_EVERY ?? 60);

// Epochs are 64-bit numbers: strings would compare as text, doubles would round.
pg.types.setTypeParser(pg.types.builtins.INT8, BigInt);

const stopping = new AbortController();
process.once('SIGTERM', () => stopping.abort());
process.once('SIGINT', () => stopping.abort());

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
// is done here may be sent again: to acquire what we hold changes no epoch, and
// a report that was made already is not due.
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

// --- the leader -------------------------------------------------------------

// The term that we hold, as far as we know: its epoch, and until when.
let term;

async function acquireOrRenew() {
  const sentAt = performance.now();
  const [token] = term === undefined
    ? await query('SELECT epoch FROM reconcile.try_acquire_lease($1, $2, $3)', [LEASE, HOLDER, `${TTL} ms`])
    : await query('SELECT epoch FROM reconcile.renew_lease($1, $2, $3)', [LEASE, HOLDER, term.epoch]);

  if (token.epoch === null) return;
  if (term?.epoch !== token.epoch) console.error(`leader at epoch ${token.epoch}`);
  term = { epoch: token.epoch, deadline: sentAt + TTL };
}

async function report() {
  await withClient(async (c) => {
    await c.query('BEGIN');
    try {
      await c.query('SELECT reconcile.bind_lease($1, $2, $3)', [LEASE, HOLDER, term.epoch]);
      await c.query(
        `INSERT INTO nightly.report (leader, epoch, tables)
         SELECT $1, $2, count(*) FROM pg_class
         HAVING NOT EXISTS (SELECT FROM nightly.report WHERE made_at > clock_timestamp() - $3::interval)`,
        [HOLDER, term.epoch, `${EVERY} ms`]);
      await c.query('COMMIT');
    } catch (error) {
      if (isAnswer(error)) await c.query('ROLLBACK');
      throw error;
    }
  });
}

while (!stopping.signal.aborted) {
  try {
    await acquireOrRenew();
    if (term !== undefined && performance.now() < term.deadline) await report();
  } catch (error) {
    if (error.code !== 'RC002' && error.code !== 'RC003') throw error;
    console.error(`not the leader any more: ${error.message}`);
    term = undefined;
  }
  await nap(Math.min(TTL / 3, EVERY));
}
if (term !== undefined) await query('SELECT reconcile.release_lease($1, $2, $3)', [LEASE, HOLDER, term.epoch]);
await client?.end();
