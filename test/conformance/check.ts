/**
 * The findings of a case, rule by rule. A failed check does not throw, so that the later checks of its case still run.
 * Each failure says what was sent, what was expected and what was received.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Reply, Shape } from '../support/wire.js';
import { sentFor } from './wire.js';

/** Why a case does not apply to this server. Thrown, it ends the case. */
export class NotApplicable extends Error {}

export interface Finding {
  readonly kind: 'pass' | 'fail' | 'skip';
  /** What failed, or why the rule was skipped; empty for a pass. */
  readonly text: string;
}

const SHOWN_MAX = 700;

/** A value as short text for the report. */
function brief(value: unknown, max = SHOWN_MAX): string {
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

  /** Records whether the rule holds; if not, `what` was expected and `came` was received. */
  ok(id: string, holds: boolean, what: string, came: unknown = ''): boolean {
    if (!this.ids.includes(id)) throw new Error(`a case checks ${id}, which it does not name`);
    if (this.found.get(id)?.kind === 'fail') return holds;
    if (holds) this.found.set(id, { kind: 'pass', text: '' });
    else this.fail(id, `expected: ${what}; ${came === '' ? '' : `came: ${brief(came)}; `}sent last: ${this.last()}`);
    return holds;
  }

  /** The received value equals the expected one. */
  same(id: string, came: unknown, expected: unknown, what: string): boolean {
    return this.ok(id, isDeepStrictEqual(came, expected), `${what}: ${brief(expected, 250)}`, came ?? 'nothing');
  }

  /** A reply has this outcome: '200', '404 item_not_found', or one of several. */
  outcome(id: string, reply: Reply, expected: string | readonly string[], what = ''): boolean {
    const list = typeof expected === 'string' ? [expected] : expected;
    return this.of(id, reply, list.includes(reply.outcome), `${what === '' ? '' : `${what}: `}${list.join(' or ')}`);
  }

  /** A condition on a reply holds. */
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

  /**
   * The case ended early: `NotApplicable` skips the rules that have no finding yet, any other error fails them, or all
   * rules of the case where each has a finding.
   */
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
