/** Output of the demo: numbered steps, printed as they happen, with measured times in a column. */
import type { Palette } from '../terminal/output.js';

const WIDTH = 86;
const INDENT = '      ';

/** A duration in ms with its unit. */
export function elapsed(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(2)} s`;
}

/** A failed check: it ends the step and the demo. */
export class CheckFailed extends Error {
  override readonly name = 'CheckFailed';
}

/** Prints the steps one after the other. */
export class Narrator {
  private step = 0;
  /** Number of checks so far. */
  checked = 0;

  constructor(
    private readonly write: (text: string) => void,
    private readonly colour: Palette,
  ) {}

  title(text: string, below: string): void {
    this.line('');
    this.line(`  ${this.colour.bold(text)}`);
    this.line(`  ${this.colour.dim(below)}`);
  }

  /** Runs one step: prints its title, then its duration; `act` prints in between. */
  async play<T>(title: string, act: () => Promise<T>): Promise<T> {
    this.step++;
    const started = performance.now();
    this.line('');
    this.line(`  ${this.colour.accent(String(this.step).padStart(2))}  ${this.colour.bold(title)}`);
    try {
      const result = await act();
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

  /** Prints a line of text. */
  say(text: string): void {
    this.line(`${INDENT}${text}`);
  }

  /** Prints the result of a check. Throws `CheckFailed` if it failed. */
  check(holds: boolean, fact: string): void {
    this.say(`${holds ? this.colour.good('✓') : this.colour.bad('✗')} ${fact}`);
    if (!holds) throw new CheckFailed(fact);
    this.checked++;
  }

  /** Prints a fact with its duration. */
  measured(fact: string, ms: number): void {
    const { dim } = this.colour;
    this.say(`${dim('·')} ${fact.padEnd(WIDTH - 20)}  ${dim(elapsed(ms).padStart(8))}`);
  }

  private outcome(what: string, figure: string): void {
    const { dim } = this.colour;
    this.say(`${dim('·')} ${dim(what.padEnd(WIDTH - 20))}  ${figure}`);
  }
}
