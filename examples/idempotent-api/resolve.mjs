// Looks in the ledger for charges whose outcome is unknown, and says what it
// finds. Only when their workers are gone: one that is alive may still charge.

import pg from 'pg';
import { entriesOf } from './ledger.mjs';

const client = new pg.Client({ user: 'clerk' });
await client.connect();
const { rows: unknown } = await client.query(
  "SELECT tenant_id, command_id, target_name FROM reconcile.commands WHERE effective_status = 'unknown' ORDER BY accepted_at");
for (const { tenant_id: tenant, command_id: id, target_name: invoice } of unknown) {
  const entries = await entriesOf(id);
  const verdict = entries.length > 0 ? 'succeeded' : 'not_executed';
  await client.query('SELECT reconcile.resolve_command($1, $2, $3, $4, $5)',
    [tenant, id, verdict, { 'entries in the ledger': entries.length }, 'looked up in the ledger']);
  console.log(`${invoice} ${verdict}`);
}
await client.end();
