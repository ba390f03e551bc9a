import { createInterface } from 'node:readline';

/** Sends a line to the parent process. */
export const say = (line: { readonly event: string; readonly [field: string]: unknown }): void => {
  process.stdout.write(`${JSON.stringify(line)}\n`);
};

/** An option of the form name=value from the command line. */
export function option(name: string, otherwise?: string): string {
  const found = process.argv.find((each) => each.startsWith(`${name}=`))?.slice(name.length + 1) ?? otherwise;
  if (found === undefined) throw new Error(`missing ${name}=`);
  return found;
}

/**
 * Runs the parent's commands, one a line: a word and the rest. Each returns its answer. Ends this process when its stdin
 * closes: a parent that was killed cannot end its children.
 */
export function obey(commands: Readonly<Record<string, (rest: string) => Parameters<typeof say>[0]>>): void {
  createInterface({ input: process.stdin })
    .on('line', (line) => {
      const [word = '', rest = ''] = line.split(' ');
      const answer = commands[word]?.(rest);
      if (answer !== undefined) say(answer);
    })
    .on('close', () => process.exit(0));
}

/** Collects garbage, so that memory can be compared. */
export const collect = (): { readonly event: string } => {
  global.gc?.();
  return { event: 'collected' };
};
