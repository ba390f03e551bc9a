/** What a program of the command line consists of, for tests that compare it with its documents. */
import type { Command } from 'commander';

/** A command, and the words that call it. */
interface Leaf {
  readonly path: string;
  readonly command: Command;
}

/** All commands of a program, at any depth. */
export function leaves(command: Command, path = ''): Leaf[] {
  return command.commands.flatMap((child) => {
    const own = path === '' ? child.name() : `${path} ${child.name()}`;
    return [{ path: own, command: child }, ...leaves(child, own)];
  });
}

/** The options of a command, in all spellings. */
export const flagsOf = (command: Command): string[] =>
  command.options.flatMap(({ long, short }) => [long, short].filter((flag) => flag !== undefined));
