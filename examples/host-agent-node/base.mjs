// What both the host and its sessions need: settings, signals, and the database.

import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

export const HOST = process.env.AGENT_HOST ?? process.env.PGUSER;
export const CAPACITY = Number(process.env.AGENT_CAPACITY ?? 4);
export const HEARTBEAT = seconds('AGENT_HEARTBEAT', 2);        // a third of session_ttl
export const POLL = seconds('AGENT_POLL', 1);
export const WORK = seconds('AGENT_WORK', 0.2);
export const FOLDER = process.env.AGENT_STATE ?? 'state';

function seconds(name, fallback) {
  return 1000 * Number(process.env[name] ?? fallback);
}

export const stopping = new AbortController();
for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => { stopping.abort(); look(); });

export const say = (what) => console.log(`${HOST} ${what}`);

// Who looks at something, and naps if there is nothing, asks for the hint before he looks.
let next = new AbortController();
export const hint = () => next.signal;
export function look() {
  next.abort();
  next = new AbortController();
}

export async function nap(ms, ...signals) {
  await sleep(ms, undefined, { signal: AbortSignal.any(signals) }).catch(() => {});
}

pg.types.setTypeParser(pg.types.builtins.INT8, BigInt);         // doubles would round
pg.types.setTypeParser(pg.types.builtins.INTERVAL, (text) => {  // of less than a day, as ms
  const [h, m, s] = text.split(':').map(Number);
  return 1000 * (60 * (60 * h + m) + s);
});
export const pool = new pg.Pool({ max: 4, connectionTimeoutMillis: HEARTBEAT, query_timeout: HEARTBEAT });
pool.on('error', (error) => console.error(`connection lost: ${error.message}`));

// Each call is a transaction, and what it returns has committed. All may be sent again:
// that is what tokens, epochs and revisions are for.
export async function call(name, ...values) {
  const places = values.map((_, i) => `$${i + 1}`);
  return (await pool.query(`SELECT * FROM reconcile.${name}(${places})`, values)).rows;
}

// Did the server say no? Else nobody knows what became of the call.
function isAnswer(error) {
  return error instanceof pg.DatabaseError && !/^(08|53|57)/.test(error.code);
}

export function unlessAnswered(error) {
  if (isAnswer(error)) throw error;
  console.error(`no answer: ${error.message}`);
}
