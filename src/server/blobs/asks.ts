/**
 * Who may ask the store, and when. Whether an upload arrived in a bucket only the bucket knows, and each asking costs:
 * so one tenant has a few of them under way at a time, one of one blob, and the others wait in line for a bounded time.
 */
import type { Clock } from '../../protocol/clock.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import type { ObjectName } from './ports.js';

/** How much one tenant may ask at a time on this instance. */
export interface AskBounds {
  readonly underWay: number;
  /** In line behind those. */
  readonly waiting: number;
  /** So long does one of them wait, ms. */
  readonly waitMs: number;
}

/** A batch of 100 items, each with a blob of its own, fits in, and so does another one beside it. */
const BOUNDS: AskBounds = { underWay: 4, waiting: 200, waitMs: 10_000 };

/** One who waits for his turn. */
interface Waiting {
  readonly begin: () => void;
  readonly refuse: (error: ServiceError) => void;
}

interface Line {
  underWay: number;
  /** In order of arrival. */
  readonly waiting: Set<Waiting>;
}

/** One question about one blob. */
interface Question {
  begun: boolean;
  readonly answer: Promise<boolean>;
}

/** See above. */
export class Asks {
  private readonly lines = new Map<string, Line>();
  /** The latest question about each blob, by tenant and ref, until it is answered. */
  private readonly latest = new Map<string, Question>();

  constructor(
    private readonly clock: Clock,
    private readonly bounds: AskBounds = BOUNDS,
  ) {}

  /**
   * Has `look` ask whether the blob is there, in its turn. Whoever asks for a blob whose question waits still is given
   * its answer. Of one that is under way only the yes: what was looked for before the upload ended may be there now.
   * Throws what `look` throws, and `unavailable` where too many wait, or this one waited for too long.
   */
  ask(name: ObjectName, look: () => Promise<boolean>): Promise<boolean> {
    const key = `${name.tenantId}/${name.ref}`;
    const before = this.latest.get(key);
    if (before !== undefined && !before.begun) return before.answer;
    const inTurn = (): Promise<boolean> =>
      this.inTurn(name.tenantId, () => {
        question.begun = true;
        return look();
      });
    const asked = async (): Promise<boolean> => {
      try {
        return (await before?.answer) === true || (await inTurn());
      } finally {
        if (this.latest.get(key) === question) this.latest.delete(key);
      }
    };
    // `asked` runs only after this line: `look` and the end of it need the question to stand.
    const question: Question = { begun: false, answer: Promise.resolve().then(asked) };
    this.latest.set(key, question);
    return question.answer;
  }

  private async inTurn(tenantId: string, look: () => Promise<boolean>): Promise<boolean> {
    const line = this.lineOf(tenantId);
    if (line.underWay >= this.bounds.underWay) await this.wait(line);
    else line.underWay++;
    try {
      return await look();
    } catch (error) {
      // It is down for them too: whoever waits in line waits for one failure, not for his own after all the others'.
      if (error instanceof ServiceError && error.error === 'storage_unavailable') {
        for (const waiting of line.waiting) waiting.refuse(error);
      }
      throw error;
    } finally {
      this.next(tenantId, line);
    }
  }

  private lineOf(tenantId: string): Line {
    const found = this.lines.get(tenantId);
    if (found !== undefined) return found;
    const line: Line = { underWay: 0, waiting: new Set() };
    this.lines.set(tenantId, line);
    return line;
  }

  /** The place of one that is through goes to the first in line, or is free. */
  private next(tenantId: string, line: Line): void {
    const [first] = line.waiting;
    if (first !== undefined) return first.begin();
    line.underWay--;
    if (line.underWay === 0) this.lines.delete(tenantId);
  }

  private wait({ waiting }: Line): Promise<void> {
    const { waiting: most, waitMs } = this.bounds;
    if (waiting.size >= most) throw unavailable('too many blobs are being looked for in the store');
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        waiting.delete(me);
        timer.cancel();
      };
      const me: Waiting = {
        begin: () => {
          leave();
          resolve();
        },
        refuse: (error) => {
          leave();
          reject(error);
        },
      };
      waiting.add(me);
      const timer = this.clock.setTimer(waitMs, () =>
        me.refuse(unavailable('the store is slow, and others were before')),
      );
    });
  }
}
