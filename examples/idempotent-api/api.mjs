// POST /charges with an Idempotency-Key admits a charge once, however often it
// is sent; GET /charges/ID says what became of it. On SIGTERM and SIGINT the
// requests in hand are answered.

import { createServer } from 'node:http';
import pg from 'pg';

const TIMEOUT = 1000 * Number(process.env.API_TIMEOUT ?? 5);

// A token is a tenant's, and so is the role that its pool connects as: whatever
// a request or a mistake here says, the database admits nothing for another.
const tenants = new Map(['acme', 'globex'].map((name) => [`Bearer token-${name}`, { name, pool: pool(`api_${name}`) }]));

const ANSWERS = { accepted: 202, replayed: 202, denied: 403, conflict: 409, key_spent: 410 };
const BODY_MAX = 10_000;

function pool(user) {
  const made = new pg.Pool({ user, max: 5, connectionTimeoutMillis: TIMEOUT, query_timeout: TIMEOUT });
  // of a connection that nobody is using: the next query makes another
  made.on('error', (error) => console.error(`idle connection lost: ${error.message}`));
  return made;
}

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function bodyOf(request) {
  let text = '';
  request.setEncoding('utf8');
  for await (const chunk of request) {
    text += chunk;
    if (text.length > BODY_MAX) throw new Refused(413, 'the body is too long');
  }
  let body;
  try { body = JSON.parse(text); } catch { throw new Refused(400, 'the body is not JSON'); }
  if (typeof body?.invoice !== 'string' || !Number.isSafeInteger(body.amount) || body.amount <= 0) {
    throw new Refused(400, 'the body needs an invoice and an amount in cents');
  }
  return body;
}

async function admit(tenant, request) {
  const key = request.headers['idempotency-key'];
  if (key === undefined) throw new Refused(400, 'the header Idempotency-Key is missing');
  const { invoice, amount } = await bodyOf(request);
  // One statement is one transaction: it is admitted, or it is not.
  const { rows: [{ outcome, command_id: id }] } = await tenant.pool.query(
    `SELECT outcome, command_id
       FROM reconcile.accept_command($1, $2, 'charge', 'invoice', $3, 'asked for through the API', $4, deadline_in => '5 min')`,
    [tenant.name, key, invoice, { amount }]);
  if (id === null) throw new Refused(ANSWERS[outcome], outcome);
  // The same for each retry: how far it is, GET tells.
  return [ANSWERS[outcome], { id, href: `/charges/${id}` }];
}

async function look(tenant, id) {
  const { rows: [charge] } = await tenant.pool.query(
    `SELECT command_id AS id, effective_status AS status, failure
       FROM reconcile.commands WHERE tenant_id = $1 AND command_id = $2`,
    [tenant.name, id]);
  if (charge === undefined) throw new Refused(404, 'there is no such charge');
  return [200, charge];
}

async function route(request) {
  const tenant = tenants.get(request.headers.authorization);
  if (tenant === undefined) throw new Refused(401, 'who are you?');
  if (request.method === 'POST' && request.url === '/charges') return admit(tenant, request);
  if (request.method === 'GET' && request.url.startsWith('/charges/')) return look(tenant, request.url.slice('/charges/'.length));
  throw new Refused(404, 'there is nothing here');
}

function refusal(error) {
  if (error instanceof Refused) return [error.status, { error: error.message }];
  // a field that the database refuses
  if (error instanceof pg.DatabaseError && error.code.startsWith('22')) return [400, { error: error.message }];
  // Nobody knows whether it was admitted. The same key finds out.
  console.error(error.message);
  return [503, { error: 'try again, with the same key' }];
}

let stopping = false;

const server = createServer(async (request, response) => {
  const [status, body] = await route(request).catch(refusal);
  response.shouldKeepAlive &&= !stopping && status !== 413;
  response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
});

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, () => {
    stopping = true;
    server.close(() => Promise.all([...tenants.values()].map((tenant) => tenant.pool.end())));
    server.closeIdleConnections();
  });
}
// a port, or the path of a socket
server.listen(process.env.API_PORT ?? 8080, '127.0.0.1');
