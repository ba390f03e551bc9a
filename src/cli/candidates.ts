/** What a shell offers for an item, a bin or a device: from what is here, without the server, and fast. */
import type { Command, Option } from 'commander';
import { titleOf } from '../sdk/payloads/shapes.js';
import { fitted, sanitizeText } from '../terminal/output.js';
import type { Context } from './context.js';
import { folding, ShortIds } from './find.js';
import { readKnown } from './known.js';
import { contextOf } from './open-device.js';
import { profileOf } from './profile.js';

/** What an argument or an option's value names. */
type Kind = 'item' | 'bin' | 'device';
const KINDS: Readonly<Record<string, Kind>> = { id: 'item', bin: 'bin', device: 'device' };

/** The kind by the name of an argument or a value: `<id>`, `[id...]`, `<bin>`, `<device>`; undefined for all others. */
export const kindOf = (name: string): Kind | undefined => (Object.hasOwn(KINDS, name) ? KINDS[name] : undefined);

/** The kind of an option's value. */
export const optionKind = ({ flags }: Pick<Option, 'flags'>): Kind | undefined =>
  kindOf(/[<[](\w+)/.exec(flags)?.[1] ?? '');

/** Titles are shortened to so many columns. */
const TITLE_WIDTH = 50;
/** A shell shows no more in a useful way. */
const CANDIDATES_MAX = 200;
/** A person waits for the key to do something: another command at work, or a slow keychain, is not waited for. */
const WITHIN_MS = 2_000;

/** The kind that the last of the words may be, and the profile that they name. */
function asked(
  program: Command,
  words: readonly string[],
): { readonly kind: Kind | undefined; readonly profile?: string } {
  let command = program;
  let profile: string | undefined;
  let value: Option | undefined;
  let position = 0;
  const last = words.length - 1;
  for (const [at, word] of words.entries()) {
    if (value !== undefined) {
      if (at === last) return { kind: optionKind(value), profile };
      if (value.long === '--profile') profile = word;
      if (!value.variadic) value = undefined;
      if (value === undefined || !word.startsWith('-')) continue;
    }
    value = undefined;
    if (at === last) break;
    if (word.startsWith('-')) {
      const option = [...command.options, ...program.options].find(
        ({ short, long }) => word === short || word === long,
      );
      value = option !== undefined && (option.required || option.optional) ? option : undefined;
      continue;
    }
    const child =
      position === 0 ? command.commands.find((one) => [one.name(), ...one.aliases()].includes(word)) : undefined;
    if (child === undefined) position++;
    else command = child;
  }
  const taken = command.registeredArguments;
  const argument = taken[position] ?? (taken.at(-1)?.variadic === true ? taken.at(-1) : undefined);
  return { kind: kindOf(argument?.name() ?? ''), profile };
}

/** Something that can be typed, and what it is; unsanitized. */
type Candidate = readonly [value: string, title: string];

async function candidates(context: Context, kind: Kind): Promise<readonly Candidate[]> {
  const { platform, profile } = context;
  if (kind === 'device') {
    const devices = (await readKnown(profile.folder)).devices ?? [];
    return devices.filter(({ revokedAt }) => revokedAt === null).map(({ id, name }) => [name, id]);
  }
  if (kind === 'bin') {
    const identity = await profile.identity();
    const keys = identity === undefined ? undefined : { ...platform, masterKey: identity.masterKey };
    const bins = (await readKnown(profile.folder, keys)).bins ?? [];
    return bins.map(({ slug, label }) => (label === null ? [slug, ''] : [label.name, slug]));
  }
  return context.withDevice(
    async ({ device }) => {
      const items = await device.list();
      const short = new ShortIds(items.map(({ id }) => id));
      return items.map(({ id, type, payload }) => [short.of(id), titleOf(type, payload)] as const);
    },
    { sync: 'local' },
  );
}

/** As it was typed into a shell, without its quotes. */
const unquoted = (word: string): string => word.replace(/[\\'"]/g, '');

/** Prints the candidates for the last of `words`, one a line. Says nothing where there are none, whatever the reason. */
export async function complete(context: Context, program: Command, words: readonly string[]): Promise<void> {
  const { terminal, platform } = context;
  const { kind, profile: named } = asked(program, words);
  if (kind === undefined) return;
  const interrupted = AbortSignal.any([terminal.interrupted, AbortSignal.timeout(WITHIN_MS)]);
  const silent = { ...terminal, interrupted, note: () => undefined, progress: () => undefined };
  const late = new Promise<never>((_, reject) => {
    interrupted.addEventListener('abort', () => reject(new Error('too late')));
  });
  try {
    const profile = profileOf(named ?? context.profile.name, { platform, terminal: silent });
    // The keychain is not interrupted by the signal: it is left behind.
    const found = await Promise.race([candidates(contextOf({ terminal: silent, platform, profile }), kind), late]);
    const typed = folding(unquoted(words.at(-1) ?? ''));
    const fits = found.filter(([value]) => folding(value).startsWith(typed)).slice(0, CANDIDATES_MAX);
    for (const [value, title] of fits) {
      // What could not be typed again as it is shown cannot be completed.
      if (sanitizeText(value) === value) terminal.print(`${value}\t${fitted(sanitizeText(title), TITLE_WIDTH)}`);
    }
  } catch {
    // A shell shows what a completion says in the middle of the line.
  }
}
