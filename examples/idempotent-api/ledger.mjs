// What is outside of the database: a ledger that is only appended to. It does
// not look whether it has an entry already, so whoever charges twice is seen.

import { open, readFile } from 'node:fs/promises';

const LEDGER = process.env.LEDGER ?? 'ledger';

export async function append(entry) {
  const file = await open(LEDGER, 'a');
  try {
    await file.write(`${JSON.stringify(entry)}\n`);
    await file.datasync();
  } finally {
    await file.close();
  }
}

export async function entriesOf(id) {
  const text = await readFile(LEDGER, 'utf8').catch((error) => {
    if (error.code === 'ENOENT') return '';
    throw error;
  });
  return text.split('\n').filter((line) => line !== '').map((line) => JSON.parse(line)).filter((entry) => entry.id === id);
}
