/**
 * The spec that a shell's script passes when it requests items, bins or devices: the arguments and the options of the
 * command on the line, as one argument. With it the program need not be loaded as a whole, a delay that users would
 * notice.
 *
 * `1 @item @bin... -b:bin --type:` is a command of one word that takes an item and bins, and whose options `-b` (a bin) and
 * `--type` have values.
 */
import type { Command, Option } from 'commander';

/** The command that scripts call: `service-device __complete SPEC -- WORDS`, the last word being the one to complete. */
export const COMPLETE = '__complete';

export type Kind = 'item' | 'bin' | 'device';
const KINDS: Readonly<Record<string, Kind>> = { id: 'item', bin: 'bin', device: 'device' };
const isKind = (text: string): text is Kind => Object.values<string>(KINDS).includes(text);

/** The kind by the name of an argument or of a value: `<id>`, `<bin>`, `<device>`. */
const kindOf = (name: string): Kind | '' => (Object.hasOwn(KINDS, name) ? (KINDS[name] ?? '') : '');

/** The kind of an option's value; '' for none. */
export const optionKind = ({ flags }: Pick<Option, 'flags'>): Kind | '' => kindOf(/[<[](\w+)/.exec(flags)?.[1] ?? '');

/** An option as it is typed: its short and its long form, those that it has. */
export const flagsOf = ({ short, long }: Option): string[] => [short, long].filter((flag) => flag !== undefined);

/** The spec of a command. `path`: as it is typed; `options`: its own, and those of the program. */
export function specOf(command: Command, path: string, options: readonly Option[]): string {
  const taken = command.registeredArguments.map((one) => `@${kindOf(one.name())}${one.variadic ? '...' : ''}`);
  const valued = options.filter(({ required, optional }) => required || optional);
  const flags = valued.flatMap((option) => flagsOf(option).map((flag) => `${flag}:${optionKind(option)}`));
  return [path === '' ? 0 : path.split(' ').length, ...taken, ...flags].join(' ');
}

/** True where an argument of the command can be completed. */
export const hasCompletableArgument = (spec: string): boolean => /(?:^| )@[a-z]/.test(spec);

const PROFILE = '--profile=';

/** The kind of the last of `words` (undefined: nothing to offer), and the profile that the words name. */
export function completionAt(spec: string, words: readonly string[]) {
  const parts = spec.split(' ');
  const taken = parts.filter((part) => part.startsWith('@'));
  const valued = new Map(
    parts.flatMap((part): [string, string][] => {
      const [flag = '', kind] = part.split(':');
      return kind === undefined ? [] : [[flag, kind]];
    }),
  );
  let flag: string | undefined;
  let profile: string | undefined;
  // The words of the command itself come first.
  let position = -Number(parts[0]);
  for (const word of words.slice(0, -1)) {
    if (flag === '--profile') profile = word;
    else if (word.startsWith(PROFILE)) profile = word.slice(PROFILE.length);
    const isValue = flag !== undefined;
    flag = !isValue && valued.has(word) ? word : undefined;
    if (!isValue && !word.startsWith('-')) position++;
  }
  const last = taken.at(-1) ?? '';
  const argument = taken[position] ?? (last.endsWith('...') ? last : '');
  const kind = flag === undefined ? argument.replace(/^@|\.\.\.$/g, '') : (valued.get(flag) ?? '');
  return { kind: isKind(kind) ? kind : undefined, profile };
}
