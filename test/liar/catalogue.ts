/** All lies in one place, and the texts that are made of them: the page of the reference, and the rules. */
import type { Family, Told, Undetectable } from './lie.js';
import { BLOB_LIES } from './lies/blobs.js';
import { CHALLENGE_LIES } from './lies/challenge.js';
import { BIN_LIES, DEVICE_LIES } from './lies/devices.js';
import { ITEM_LIES } from './lies/items.js';
import { FLOODS } from './lies/floods.js';
import { LOW_ORDER, OTHER_CLAIM, OTHER_HOST, OTHER_TENANT, PAIR_LIES } from './lies/pairing.js';
import { GONE_LIES, STREAM_LIES } from './lies/stream.js';
import { TRANSPORT_LIES } from './lies/transport.js';
import { WRITE_LIES } from './lies/writes.js';

export const CATALOGUE: readonly Told[] = [
  ...ITEM_LIES,
  ...STREAM_LIES,
  ...WRITE_LIES,
  ...DEVICE_LIES,
  ...BIN_LIES,
  ...PAIR_LIES,
  LOW_ORDER,
  OTHER_TENANT,
  OTHER_CLAIM,
  ...CHALLENGE_LIES,
  ...TRANSPORT_LIES,
  ...BLOB_LIES,
  ...FLOODS,
  OTHER_HOST,
  ...GONE_LIES,
];

export const UNDETECTABLE: readonly Undetectable[] = [
  {
    does: 'withholds an item from the start, in frames, listings and counts alike',
    why: 'A device cannot miss what it never heard of',
    limits: 'Any device that has seen the item notices (LIAR-35). Compare the list with the device that wrote it',
  },
  {
    does: 'shows two devices two histories, each sound in itself',
    why: 'Devices compare nothing with each other but through the server',
    limits: 'Every item shown is one that a device of the user wrote; nothing can be added or changed',
  },
  {
    does: 'sends everything late, or nothing at all; refuses writes; says that a device is revoked',
    why: 'Whoever runs the server can switch it off',
    limits: 'What is held stays readable, what was written waits in the outbox',
  },
  {
    does: 'un-revokes a device that held the master key, for a device that did not see the revocation',
    why: 'The certificate of that device still holds, and a revocation is the word of the server',
    limits:
      'A device that saw it in the same run of its program notices (LIAR-62). Only a new phrase, and with it a new tenant, shuts out who holds the master key',
  },
  {
    does: 'lies about who wrote (`senderDevice`), or gives an item in the name of another device',
    why: 'No tag covers it: all devices of a user tag with the same key',
    limits: 'Only devices of the user can write at all; the field is shown as the word of the server',
  },
  {
    does: "changes a device's name, glyph, or the times at which it was seen, in the list",
    why: 'The certificate covers id and key only',
    limits: 'Compare fingerprints, not names. At pairing the name is covered by the attestation (LIAR-69)',
  },
  {
    does: 'puts an item back into a bin in which it was before, or gives an older set of keys for the same content',
    why: 'The tag of that state is one that a device made, and neither move nor re-wrap has a time of its own',
    limits: 'The content is the same, and no stranger can open it',
  },
  {
    does: 'brings a deleted item back where the delete was never seen, or under another epoch',
    why: 'A restored database does the same',
    limits: 'The event `reset` says that the history is another one; the item is one that the user wrote',
  },
  {
    does: 'hides an empty bin, or changes slugs, times and counts of bins, or the figures of `/me`',
    why: 'Nothing a device holds speaks of them',
    limits: 'Items name their bin under their tag, so a bin with items is missed (LIAR-65)',
  },
  {
    does: 'watches: who is online when, how much is written, which type and which bin',
    why: 'It needs that to deliver',
    limits: 'Contents, labels of bins and keys are not among it',
  },
  {
    does: 'names an address of another host for a blob, in the network of the device',
    why: 'A store may be anywhere, and nothing tells a right host from a wrong one',
    limits:
      'Only https (http where the server itself is reached so), no token, no redirect, and what comes back is used only where it decrypts. In a browser the rules of CORS hold too',
  },
  {
    does: 'sends junk without end',
    why: 'Each piece may be the last',
    limits: 'Replies, frames and queues are bounded, and a device may be disconnected at any time',
  },
];

const FAMILIES: Readonly<Record<Family, string>> = {
  items: 'Items',
  stream: 'The stream: deletes, age, order, number',
  writes: 'Own writes',
  devices: 'Devices',
  bins: 'Bins',
  pairing: 'Pairing and claim',
  challenge: 'Re-authentication',
  transport: 'Below the contract',
  blobs: 'Blobs',
};

const code = (text: string): string => `\`${text}\``;
const words = (text: string): string => text.split(' ').map(code).join(' ');

const SPECIAL: Readonly<Record<string, string>> = {
  'missing unlisted': 'event `missing`, in `unlisted`',
  'bins unlisted': 'event `bins`, in `unlisted`',
  'bins unreadable': 'event `bins`, `readable` false',
};

/** A name of the catalogue in the words of the reference. */
function spoken(name: string): string {
  const special = SPECIAL[name];
  if (special !== undefined) return special;
  const [how = '', ...rest] = name.split(' ');
  const what = rest.length === 0 ? '' : rest.join(' ').split(': ').map(words).join(', cause ');
  if (how === 'throws') return `rejects with ${what}`;
  if (how === 'problem') return `event \`problem\`: ${what}`;
  return what === '' ? `event ${code(how)}` : `event ${code(how)}, reason ${what}`;
}

const named = ({ named: names }: Told): string => (names.length === 0 ? 'Not at all' : names.map(spoken).join('; '));

const row = (...cells: readonly string[]): string => `| ${cells.join(' | ')} |`;

function tableOf(family: Family): string {
  const lies = CATALOGUE.filter((lie) => lie.family === family);
  return [
    `## ${FAMILIES[family]}`,
    '',
    row('', 'The server', 'Who notices', 'How it is named', 'What it costs'),
    row('---', '---', '---', '---', '---'),
    ...lies.map((lie) => row(lie.id, lie.does, lie.notices, named(lie), lie.costs)),
    '',
  ].join('\n');
}

const HEAD = `# Attacks by the server

Our clients trust a server with delivery and with nothing else. This page lists what a server can try against them, who
notices, by which event, reason or error a program hears of it, and what it costs all the same. Each numbered attack is
played by the tests against the client library, with a real server behind the liar: it is named as it is written here;
nothing is shown that no device of the user wrote, and nothing is lost that was held; and in what the devices sent there
is no master key, secret key, phrase, visible code or content, and no key that was sealed for a stranger.

Names: *event* is an event of \`Device\`; *rejects* is what the call ends with. A \`ProtocolError\` has the \`code\` that is
named, a \`CryptoRefusal\` the \`reason\`. What does not verify is not shown, and the last state that did is kept: \`hidden\`
lists such items, \`kept\` reads them. When the server is honest again, \`resync\` reads everything anew and mends the rest.

\`npm run liar\` tells another client those of them that can be told to any: [Conformance](conformance.md#prove-a-client).
`;

const TAIL = `## What no client can detect

${row('The server', 'Why', 'What limits it')}
${row('---', '---', '---')}
${UNDETECTABLE.map(({ does, why, limits }) => row(does, why, limits)).join('\n')}
`;

/** The page \`attacks.md\` of the reference. */
export function attacksPage(): string {
  const families = Object.keys(FAMILIES) as Family[];
  return [HEAD, ...families.map(tableOf), TAIL].join('\n');
}

/** The lines of the section "Lying servers" in RULES.md. */
export function rules(): readonly string[] {
  return CATALOGUE.map((lie) => {
    const outcome = lie.named.length === 0 ? 'and changes nothing' : `and is named: ${named(lie)}`;
    return `- **${lie.id}** A lying server ${lie.does}, ${outcome}.`;
  });
}
