/** What the coordinator orders of the processes of a run, and what they tell it. */
import type { Tick } from './meter.js';
import type { Plan, Share } from './plan.js';
import type { Access, PartResult } from './worker.js';

/** The phases of a run, in their order; `remove` ends it at any time. */
export const PHASES = ['prepare', 'connect', 'write', 'finish', 'remove'] as const;
export type Phase = (typeof PHASES)[number];

/** An order; `prepare` comes with what it needs. */
export interface Order {
  readonly phase: Phase;
  readonly plan?: Plan;
  /** Of the first process that gets it; the others follow. */
  readonly share?: Share;
  /** Within a machine only. */
  readonly access?: Access;
}

/** News of a process. */
export type News =
  | { readonly news: 'done'; readonly phase: Phase }
  | { readonly news: 'failed'; readonly phase: Phase; readonly text: string }
  | { readonly news: 'tick'; readonly part: number; readonly tick: Tick }
  | { readonly news: 'result'; readonly result: PartResult };

/** Processes that act as one: those of a machine. */
export interface Crew {
  readonly name: string;
  readonly processes: number;
  /** Gives an order to all of them; resolves when all are done. Rejects where one fails or is gone. */
  perform(order: Order): Promise<void>;
  /** Ends the processes, or the connection to them. */
  end(): void;
}

/** What a crew tells beside the outcome of an order. */
export interface CrewEvents {
  readonly onTick: (part: number, tick: Tick) => void;
  readonly onResult: (result: PartResult) => void;
}

/** A process or a machine that does not answer any more, or could not do what it was to. */
export class CrewError extends Error {
  override readonly name = 'CrewError';

  constructor(
    message: string,
    /** It is gone, and cannot be given another order. */
    readonly gone = false,
  ) {
    super(message);
  }
}
