// What a session has done: a file that all hosts reach, to which they append. A line
// behind one of a higher epoch does not count: whoever got the session has fenced off
// those who had it before, however late they come.

import { appendFile, mkdir, readFile } from 'node:fs/promises';
import { FOLDER, HOST } from './base.mjs';

const escaped = (id) => id.replace(/[%/@]/g, encodeURIComponent);

await mkdir(FOLDER, { recursive: true });

export class Journal {
  constructor(tenant, session, epoch) {
    Object.assign(this, { file: `${FOLDER}/${escaped(tenant)}@${escaped(session)}`, epoch, applied: new Set() });
  }

  // Leaves the commands that were applied, and says whether the line counts.
  async append(what, command) {
    await appendFile(this.file, `${this.epoch}\t${HOST}\t${what}\t${command}\n`);
    let highest = 0n;
    for (const line of (await readFile(this.file, 'utf8')).split('\n').slice(0, -1)) {
      const [epoch, , kind, id] = line.split('\t');
      if (BigInt(epoch) < highest) continue;
      highest = BigInt(epoch);
      if (kind === 'applied') this.applied.add(id);
    }
    return highest === this.epoch;
  }
}
