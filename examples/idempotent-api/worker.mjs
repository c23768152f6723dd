// Carries out charges: claims one, commits, charges, reports. Ends on SIGTERM
// and SIGINT, with the charge in hand reported.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { append } from './ledger.mjs';

const WORKER = `${hostname()}/${randomUUID()}`;
const TTL = seconds('CHARGE_TTL', 30);
const POLL = seconds('CHARGE_POLL', 1);
const TAKES = seconds('CHARGE_TAKES', 0.2);

const stopping = new AbortController();
process.once('SIGTERM', () => stopping.abort());
process.once('SIGINT', () => stopping.abort());

const pool = new pg.Pool({ user: 'charger', max: 1, connectionTimeoutMillis: 2000, query_timeout: 5000 });
pool.on('error', (error) => console.error(`connection lost: ${error.message}`));

function seconds(name, fallback) {
  return 1000 * Number(process.env[name] ?? fallback);
}

async function nap(ms) {
  await sleep(ms, undefined, { signal: stopping.signal }).catch(() => {});
}

// Did the server answer, or do we not know what became of the statement?
function isAnswer(error) {
  return error instanceof pg.DatabaseError && !/^(08|53|57)/.test(error.code);
}

// One statement is one transaction, so what is returned here is committed: it is
// ours, and nobody else gets it. What was claimed and never came here lapses.
async function claim() {
  const until = performance.now() + TTL;
  const { rows: [command] } = await pool.query(
    `SELECT tenant_id, command_id, claim_token, target_name, options
       FROM reconcile.claim_commands($1, '{charge}', ttl => $2)`,
    [WORKER, `${TTL} ms`]);
  return command && { ...command, until };
}

async function act({ tenant_id: tenant, command_id: id, target_name: invoice, options, until }) {
  await sleep(TAKES);
  // Whoever looks after the claim has lapsed is not to be overtaken by us.
  if (performance.now() > until) return ['failed', 'too_late'];
  await append({ id, tenant, invoice, amount: options.amount });
  return ['succeeded', null];
}

// The same report may be sent again: it was "completed", or is "repeated". Where
// the claim has lapsed the answer is "terminal", and the report is kept beside.
async function report({ tenant_id: tenant, command_id: id, claim_token: token }, [status, failure]) {
  for (;;) {
    try {
      const { rows: [{ answer }] } = await pool.query(
        'SELECT reconcile.complete_command($1, $2, $3, $4, $5) AS answer', [tenant, id, token, status, failure]);
      console.log(`${id} ${status}: ${answer}`);
      return;
    } catch (error) {
      if (isAnswer(error) || stopping.signal.aborted) throw error;
      console.error(`${id} ${status}, not reported yet: ${error.message}`);
      await nap(200);
    }
  }
}

console.log(`worker ${WORKER}`);
while (!stopping.signal.aborted) {
  let command;
  try {
    command = await claim();
  } catch (error) {
    if (isAnswer(error)) throw error;
    console.error(`no connection: ${error.message}`);
  }
  if (command === undefined) await nap(POLL);
  else await report(command, await act(command));
}
await pool.end();
