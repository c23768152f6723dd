// client.mjs FIRST LAST: charges the invoices FIRST to LAST, eight at a time, and
// says what became of each. It may be killed and started again at any time: the
// key is made of the invoice, so a retry of tomorrow is the same as one of now.
// On SIGTERM it begins no more, and ends with those in hand.

import { setTimeout as sleep } from 'node:timers/promises';

const API = process.env.API_URL ?? 'http://127.0.0.1:8080';
const TOKEN = process.env.API_TOKEN ?? 'token-acme';
const [first, last] = process.argv.slice(2).map(Number);

let retries = 0;

// Asks until there is an answer. No answer, and 503, say nothing of what was done.
async function ask(path, options = {}) {
  for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
    try {
      const response = await fetch(API + path, {
        ...options,
        headers: { ...options.headers, Authorization: `Bearer ${TOKEN}` },
        signal: AbortSignal.timeout(2000),
      });
      if (response.status < 500) return { code: response.status, ...await response.json() };
    } catch (error) {
      // fetch() has no better name for a connection that was lost
      if (!['TypeError', 'TimeoutError', 'SyntaxError'].includes(error.name)) throw error;
    }
    retries++;
    await sleep(pause * (0.5 + Math.random()));
  }
}

async function charge(number) {
  const invoice = `invoice-${number}`;
  const admitted = await ask('/charges', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Idempotency-Key': `charge ${invoice}` },
    body: JSON.stringify({ invoice, amount: 100 * number }),
  });
  if (admitted.code !== 202) return `refused: ${admitted.error}`;
  for (;;) {
    const { code, error, status, failure } = await ask(admitted.href);
    if (code !== 200) return `lost: ${error}`;
    if (!['pending', 'dispatched', 'acknowledged'].includes(status)) return failure === null ? status : `${status}: ${failure}`;
    await sleep(100);
  }
}

const counts = {};
let next = first;
let stopping = false;

process.once('SIGTERM', () => { stopping = true; });

async function chargeSome() {
  while (!stopping && next <= last) {
    const number = next++;
    const became = await charge(number);
    counts[became] = (counts[became] ?? 0) + 1;
    console.log(`invoice-${number} ${became}`);
  }
}

await Promise.all(Array.from({ length: 8 }, chargeSome));
console.log(JSON.stringify({ ...counts, retries }));
