/**
 * What a case found, rule by rule. A check does not throw: the others of its case still say something. Each failure
 * says what was sent, what was expected and what came.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Reply, Shape } from '../support/wire.js';
import { sentFor } from './wire.js';

/** A rule of a case that does not apply to this server, and why. Thrown, it ends the case. */
export class NotApplicable extends Error {}

export interface Finding {
  readonly kind: 'pass' | 'fail' | 'skip';
  /** What was seen, or why it was skipped. */
  readonly text: string;
}

const SHOWN_MAX = 700;

/** A value for people: short, on one line. */
export function brief(value: unknown, max = SHOWN_MAX): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? 'nothing');
  return text.length > max ? `${text.slice(0, max)}...` : text;
}

/** The findings of one case in one shape. */
export class Check {
  private readonly found = new Map<string, Finding>();

  constructor(
    readonly ids: readonly string[],
    readonly shape: Shape,
    private readonly shaped: boolean,
    /** What was sent last. */
    private readonly last: () => string = () => '',
  ) {}

  /** `holds` for the rule; otherwise `what` was expected and `came` is what came. */
  ok(id: string, holds: boolean, what: string, came: unknown = ''): boolean {
    if (!this.ids.includes(id)) throw new Error(`a case checks ${id}, which it does not name`);
    if (this.found.get(id)?.kind === 'fail') return holds;
    if (holds) this.found.set(id, { kind: 'pass', text: '' });
    else this.fail(id, `expected: ${what}; ${came === '' ? '' : `came: ${brief(came)}; `}sent last: ${this.last()}`);
    return holds;
  }

  /** The value that came is the expected one. */
  same(id: string, came: unknown, expected: unknown, what: string): boolean {
    return this.ok(id, isDeepStrictEqual(came, expected), `${what}: ${brief(expected, 250)}`, came ?? 'nothing');
  }

  /** A reply has this outcome: '200', '404 item_not_found', or one of several. */
  outcome(id: string, reply: Reply, expected: string | readonly string[], what = ''): boolean {
    const list = typeof expected === 'string' ? [expected] : expected;
    return this.of(id, reply, list.includes(reply.outcome), `${what === '' ? '' : `${what}: `}${list.join(' or ')}`);
  }

  /** Something about a reply holds. */
  of(id: string, reply: Reply, holds: boolean, what: string): boolean {
    if (holds) return this.ok(id, true, what);
    if (!this.ids.includes(id)) throw new Error(`a case checks ${id}, which it does not name`);
    const came = `${reply.status} ${brief(reply.raw, 300)}`;
    this.fail(id, `expected: ${what}; came: ${came}; sent: ${sentFor(reply)}`);
    return false;
  }

  /** A reply is a refusal, from 400 to 499. */
  refused(id: string, reply: Reply, what: string): boolean {
    return this.of(id, reply, reply.status >= 400 && reply.status < 500, `${what} is refused`);
  }

  /** The rule does not apply here. */
  skip(id: string, reason: string): void {
    if (!this.found.has(id)) this.found.set(id, { kind: 'skip', text: reason });
  }

  /** The case ended early: what it had not decided is not proved. */
  ended(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    const open = this.ids.filter((id) => !this.found.has(id));
    if (error instanceof NotApplicable) for (const id of open) this.skip(id, text);
    else
      for (const id of open.length > 0 ? open : this.ids)
        this.fail(id, `expected: that the check can go on; came: ${text}; sent last: ${this.last()}`);
  }

  /** What was found for each rule of the case. */
  result(): Map<string, Finding> {
    const undecided: Finding = { kind: 'fail', text: 'the kit decided nothing: a fault of the kit' };
    return new Map(this.ids.map((id) => [id, this.found.get(id) ?? undecided]));
  }

  private fail(id: string, text: string): void {
    if (this.found.get(id)?.kind === 'fail') return;
    this.found.set(id, { kind: 'fail', text: this.shaped ? `shape ${this.shape}: ${text}` : text });
  }
}
