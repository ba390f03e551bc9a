/**
 * How far a long command is. On a terminal one line that is written over, at most ten times a second; in a log whole
 * lines, the first after ten seconds and then as far apart, so that short work says nothing there. Never on standard
 * output, and not with `--json`.
 */
import type { Terminal } from './terminal.js';

const EVERY_MS = 100;

/** Tells of work by a text that is made only when it is shown. */
export type Told = (text: () => string) => void;

/** A teller for one piece of work. Its last text may be left out: the result is told by itself. */
export function paced(terminal: Pick<Terminal, 'progress'>, now: () => number = () => performance.now()): Told {
  let told = -Infinity;
  return (text) => {
    const at = now();
    if (at - told < EVERY_MS) return;
    told = at;
    terminal.progress(text());
  };
}
