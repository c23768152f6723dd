// A session that this host has: carries out its commands in their order, for as long
// as it is ours.

import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { POLL, WORK, call, hint, nap, say, stopping, unlessAnswered } from './base.mjs';
import { Journal } from './journal.mjs';

export class Session {
  constructor(offer, epoch, until) {
    Object.assign(this, { offer, epoch, token: offer.token, id: [offer.tenant_id, offer.session_id] });
    this.name = `${this.id.join('/')} epoch ${epoch}`;
    this.lost = new AbortController();
    this.over = AbortSignal.any([this.lost.signal, stopping.signal]);
    this.extend(until);
    say(`started ${this.name}`);
  }

  // Ours until then, by a clock that nobody sets: afterwards another host may have it.
  extend(until) {
    clearTimeout(this.deadline);
    if (this.ended) return;
    this.until = until;
    this.deadline = setTimeout(() => this.lose('its time is over'), until - performance.now());
  }

  lose(why) {
    this.why ??= why;
    this.lost.abort();
  }

  async live() {
    try {
      // where it is lost, nothing that it waits for is waited for
      await Promise.race([this.run(), once(this.lost.signal, 'abort')]);
    } catch (error) {
      this.lose(error.message);
    }
    say(`stopped ${this.name}${this.why === undefined ? '' : `: ${this.why}`}`);
    while (performance.now() < this.until && !this.isTold) {
      try {
        const [{ outcome }] = await call('release_session', ...this.id, this.epoch, this.token);
        say(`${outcome} ${this.name}`);
        break;
      } catch (error) {
        console.error(`${this.name}: ${error.message}`);
        await sleep(100);
      }
    }
    this.ended = true;
    clearTimeout(this.deadline);
  }

  async run() {
    let after = 0n;
    this.journal = new Journal(...this.id, this.epoch);
    if (!await this.journal.append('opened', '')) this.lose('it is fenced off');
    while (!this.lost.signal.aborted) {
      const hinted = hint();
      try {
        const commands = await call('session_commands', ...this.id, after, 100);
        const command = commands.find(({ state }) => state !== 'applied' && state !== 'rejected');
        if (stopping.signal.aborted && command?.state !== 'applying') return;
        if (command !== undefined) {
          if (await this.step(command)) after = command.accepted_order;
        } else if (commands.length > 0) {
          after = commands.at(-1).accepted_order;
        } else {
          await nap(POLL, hinted, this.over);
        }
      } catch (error) {
        if (this.lost.signal.aborted) return;
        unlessAnswered(error);
        await nap(200, this.lost.signal);
      }
    }
  }

  check([{ outcome }]) {
    if (/^(not_found|epoch|lease_lost)$/.test(outcome)) this.lose(outcome);
    return outcome;
  }

  // What a command needs next, by what is stored of it: so an answer that was lost is
  // found there, and what a host before this one has begun. True if nobody can do more.
  async step(command) {
    const { command_id: id, state, attempt_id: attempt } = command;
    const next = async (step, ...values) =>
      this.check(await call(step, ...this.id, id, this.epoch, this.token, command.revision, ...values));

    if (state === 'applying' && command.attempt_epoch === this.epoch) {
      if (await this.apply(id) && await next('settle_attempt', attempt, 'applied') === 'settled') say(`applied ${this.name} ${id}`);
    } else if (state === 'applying' && !this.journal.applied.has(id)) {
      await next('settle_attempt', attempt, 'not_applied');     // and never will be: its host is fenced off
    } else if (state === 'applying') {
      say(`unsettled ${this.name} ${id}: it was applied at epoch ${command.attempt_epoch}`);
      return true;
    } else if (state === 'claimed' && command.claim_epoch === this.epoch && await next('begin_attempt', randomUUID()) !== 'claim_lost') {
      // its attempt is read next, and only then made
    } else if (await next('claim_session_command') === 'deadline') {
      await next('reject_session_command');
    }
    return false;
  }

  // Stands for what a session does.
  async apply(id) {
    if (this.journal.applied.has(id)) return true;
    await sleep(WORK, undefined, { signal: this.lost.signal });
    if (performance.now() >= this.until) this.lose('its time is over');
    else if (!await this.journal.append('applied', id)) this.lose('it is fenced off');
    return !this.lost.signal.aborted;
  }
}
