/** The demo's voice: numbered steps, each line as it happens, with measured times, aligned, in colour on a terminal only. */
import type { Palette } from '../terminal/palette.js';

const WIDTH = 86;
const INDENT = '      ';

/** Milliseconds as a person reads them. */
export function elapsed(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(2)} s`;
}

/** A check that failed: the step it belongs to ends here, and so does the demo. */
export class CheckFailed extends Error {
  override readonly name = 'CheckFailed';
}

/** What a step writes below its title. */
export interface Told {
  /** A line of the story. */
  say(text: string): void;
  /** A fact that was checked just now; throws `CheckFailed` where it does not hold. */
  check(holds: boolean, fact: string): void;
  /** A fact with a figure of its own, such as how long a push took. */
  measured(fact: string, ms: number): void;
}

/** Tells the steps one after the other. */
export class Narrator {
  private step = 0;
  private checks = 0;

  constructor(
    private readonly write: (text: string) => void,
    private readonly colour: Palette,
  ) {}

  /** How many facts were checked so far. */
  get checked(): number {
    return this.checks;
  }

  title(text: string, below: string): void {
    this.line('');
    this.line(`  ${this.colour.bold(text)}`);
    this.line(`  ${this.colour.dim(below)}`);
  }

  /** Plays one step: its title, its lines as they are told, and when it is over how long it took. */
  async play<T>(title: string, act: (told: Told) => Promise<T>): Promise<T> {
    this.step++;
    const started = performance.now();
    this.line('');
    this.line(`  ${this.colour.accent(String(this.step).padStart(2))}  ${this.colour.bold(title)}`);
    try {
      const result = await act(this.teller());
      this.outcome('this step took', this.colour.good(elapsed(performance.now() - started).padStart(8)));
      return result;
    } catch (error) {
      this.outcome('this step', this.colour.bad('failed'.padStart(8)));
      throw error;
    }
  }

  line(text: string): void {
    this.write(`${text}\n`);
  }

  private outcome(what: string, figure: string): void {
    this.line(`${INDENT}${this.colour.dim('·')} ${this.colour.dim(what.padEnd(WIDTH - 20))}  ${figure}`);
  }

  private teller(): Told {
    const { colour } = this;
    return {
      say: (text) => this.line(`${INDENT}${text}`),
      check: (holds, fact) => {
        this.line(`${INDENT}${holds ? colour.good('✓') : colour.bad('✗')} ${fact}`);
        if (!holds) throw new CheckFailed(fact);
        this.checks++;
      },
      measured: (fact, ms) =>
        this.line(`${INDENT}${colour.dim('·')} ${fact.padEnd(WIDTH - 20)}  ${colour.dim(elapsed(ms).padStart(8))}`),
    };
  }
}
