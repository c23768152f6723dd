// A host: is offered sessions, accepts them, and says what it has. Ends on SIGTERM and
// SIGINT, with its sessions let go.

import { createHash, randomUUID } from 'node:crypto';
import pg from 'pg';
import { CAPACITY, HEARTBEAT, HOST, POLL, call, hint, look, nap, pool, say, stopping, unlessAnswered } from './base.mjs';
import { Session } from './session.mjs';

const TARGET = ['room', 'v1', 'pooled'];    // what we offer: agent, runtime, placement

const sessions = new Map();     // what we have, by tenant and id
const accepting = new Map();    // offers that we accept, and know no answer yet
let generation;                 // of this process: the next of this host has a higher one
let beatAt = 0;

// All that there is to say, in one call. It names what is to be stopped; the rest is
// ours for some time more, which counts from when we asked.
async function heartbeat() {
  const sentAt = performance.now();
  const said = [...sessions.values()];
  const target = { available_capacity: Math.max(CAPACITY - said.length, 0), accepting: !stopping.signal.aborted, endpoint: `ws://${HOST}:80`,
    isolation_class: 'cross_tenant_isolated', agent_id: TARGET[0], runtime_compatibility_id: TARGET[1], placement: TARGET[2] };
  const beats = said.map((s) => ({ tenant_id: s.id[0], session_id: s.id[1], epoch: String(s.epoch), token: s.token }));
  const [host, ...others] = await call('heartbeat_host', HOST, generation, JSON.stringify([target]), JSON.stringify(beats), `${3 * HEARTBEAT} ms`);

  beatAt = sentAt + HEARTBEAT;
  if (host.outcome !== 'renewed') {
    console.error(`this is not the host ${HOST} any more: ${host.outcome}`);
    process.exitCode = 1;
    accepting.clear();
    stopping.abort();
    others.push(...said.map((s) => ({ outcome: host.outcome, tenant_id: s.id[0], session_id: s.id[1] })));
  }
  for (const { outcome, tenant_id: tenant, session_id: id } of others) {
    const session = sessions.get(JSON.stringify([tenant, id]));
    if (session === undefined) continue;                // it has ended meanwhile
    session.isTold = true;
    session.lose(outcome);
  }
  for (const session of said) if (!session.isTold) session.extend(sentAt + host.remaining);
}

async function answerOffers() {
  for (const offer of await call('fetch_offers', 100)) {
    const code = stopping.signal.aborted ? 'not_admitting' : sessions.size + accepting.size >= CAPACITY ? 'no_capacity' : undefined;
    if (accepting.has(offer.offer_id)) continue;
    if (code !== undefined) await call('refuse_offer', offer.offer_id, code);
    else accepting.set(offer.offer_id, { ...offer, token: randomUUID() });
  }
  // the same offer with the same token, until there is an answer
  for (const [id, offer] of accepting) {
    const key = JSON.stringify([offer.tenant_id, offer.session_id]);
    if (sessions.has(key)) continue;                    // it comes back, and the last of it is ending still
    const sentAt = performance.now();
    const [{ outcome, epoch, remaining }] = await call('accept_offer', id, generation, offer.token);
    accepting.delete(id);
    say(`offer ${id} ${outcome}`);
    if (outcome !== 'accepted' && outcome !== 'repeated') continue;
    const session = new Session(offer, epoch, sentAt + remaining);
    sessions.set(key, session);
    session.live().then(() => { sessions.delete(key); look(); });
    beatAt = 0;                                         // so that it is known to be here
  }
}

// With reconcile.notify the server hints at what there is; who polls misses nothing.
let listening = false;
async function listen() {
  if (listening || (await pool.query('SHOW reconcile.notify')).rows[0]['reconcile.notify'] === 'off') return;
  const client = new pg.Client();
  client.on('notification', look);
  client.on('error', () => {});
  client.on('end', () => { listening = false; });
  await client.connect();
  client.unref();
  await client.query(`LISTEN reconcile_${createHash('sha256').update(HOST).digest('hex').slice(0, 32)}`);
  listening = true;
}

async function nextGeneration() {
  const { rows } = await pool.query(`SELECT greatest(max(host_generation) + 1, (1000 * extract(epoch FROM clock_timestamp()))::bigint) AS next
    FROM reconcile.host_targets WHERE host_id = $1`, [HOST]);
  return rows[0].next;
}

let giveUpAt = Infinity;
stopping.signal.addEventListener('abort', () => { giveUpAt = performance.now() + 3 * HEARTBEAT; });
for (;;) {
  const hinted = hint();
  try {
    generation ??= await nextGeneration();
    if (performance.now() >= beatAt) {
      await heartbeat();
      await listen();
    }
    await answerOffers();
    if (stopping.signal.aborted && sessions.size === 0 && accepting.size === 0) {
      await call('drain_host_target', HOST, generation, ...TARGET);
      break;
    }
    if (beatAt > 0) await nap(Math.min(POLL, beatAt - performance.now()), hinted);
  } catch (error) {
    unlessAnswered(error);
    if (sessions.size === 0 && performance.now() > giveUpAt) throw error;
    await nap(200, hinted);
  }
}
await pool.end();
