/** Plays lies one after the other, each to a new client process, and returns the outcome of each. */
import type { WithTeardown } from '../../support/postgres.js';
import { Faulty } from './client.js';
import { Desk } from './desk.js';
import { NETWORK_LIES } from './lies.js';
import type { NetworkLie } from './script.js';

/** The outcome of a lie. */
export interface Outcome {
  readonly id: string;
  readonly does: string;
  readonly page: string;
  /**
   * `noticed`: it was reported, and did no harm. `kept_safe`: it did no harm, and there is nothing to report.
   * `silent`: it did no harm, but was not reported to the user. `believed`: what is shown, sent or kept is wrong, or a
   * lie was not reported against which a report is all that a client can do. `skipped`: the client does not know a
   * command that the lie needs.
   */
  readonly kind: 'noticed' | 'kept_safe' | 'silent' | 'believed' | 'skipped';
  /** What is wrong, or what the client reported. */
  readonly text: string;
}

interface PlayOptions {
  /** The program that is the client, with its arguments. */
  readonly command: readonly string[];
  /** Where a real, unclaimed server without rates listens on this machine. */
  readonly port: number;
  /** Ids and prefixes; left out: all. */
  readonly only?: readonly string[];
  /** Called after each lie. */
  readonly onOutcome?: (outcome: Outcome, complaints: string) => void;
}

export const chosen = (only?: readonly string[]): readonly NetworkLie[] =>
  NETWORK_LIES.filter(({ id }) => only === undefined || only.some((one) => id === one || id.startsWith(`${one}-`)));

/** True for an outcome that is a fault of the client. */
export const isFault = ({ kind }: Outcome): boolean => kind === 'believed' || kind === 'silent';

/** Plays the lies. Rejects where the server cannot be claimed. */
export async function playAll(t: WithTeardown, options: PlayOptions): Promise<readonly Outcome[]> {
  const desk = await Desk.set(t, options.port, options.command);
  t.teardown(() => desk.client.end());
  const outcomes: Outcome[] = [];
  for (const lie of chosen(options.only)) {
    const outcome = await played(desk, lie);
    outcomes.push(outcome);
    options.onOutcome?.(outcome, desk.client.complaints);
    await desk.leave();
  }
  return outcomes;
}

async function played(desk: Desk, lie: NetworkLie): Promise<Outcome> {
  const { id, does, page } = lie;
  try {
    await desk.enter(lie.joined);
    await lie.play(desk);
  } catch (error) {
    if (!(error instanceof Faulty)) throw error;
    return { id, does, page, kind: 'believed', text: error.message };
  }
  return { id, does, page, ...judged(desk, lie) };
}

function judged(desk: Desk, { id, silence }: NetworkLie): Pick<Outcome, 'kind' | 'text'> {
  const { cannot, problems } = desk.client;
  if (cannot.length > 0)
    return { kind: 'skipped', text: `the client does not know ${[...new Set(cannot)].join(', ')}` };
  const wrong = desk.judge();
  if (wrong.length > 0) return { kind: 'believed', text: wrong.join('; ') };
  const said = [...new Set(problems)].join(', ');
  if (said !== '' && silence === 'right' && id.startsWith('HONEST'))
    return { kind: 'believed', text: `it reported what is no fault: ${said}` };
  if (said !== '') return { kind: 'noticed', text: said };
  return silence === 'right' ? { kind: 'kept_safe', text: '' } : { kind: silence, text: 'it reported nothing' };
}
