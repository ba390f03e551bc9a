/** All lies in one place, and the texts generated from them: the page of the reference and the rules. */
import type { Family, Told, Undetectable } from './lie.js';
import { BLOB_LIES } from './lies/blobs.js';
import { CHALLENGE_LIES } from './lies/challenge.js';
import { BIN_LIES, DEVICE_LIES, MISPLACED } from './lies/devices.js';
import { ITEM_LIES } from './lies/items.js';
import { DROPPED_LIES } from './lies/dropped.js';
import { FLOODS } from './lies/floods.js';
import { LOW_ORDER, OTHER_CLAIM, OTHER_HOST, OTHER_TENANT, PAIR_LIES } from './lies/pairing.js';
import { GONE_LIES, LOST_LIE, STREAM_LIES } from './lies/stream.js';
import { TRANSPORT_LIES } from './lies/transport.js';
import { BASE_LIE, WRITE_LIES } from './lies/writes.js';

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
  BASE_LIE,
  ...DROPPED_LIES,
  MISPLACED,
  LOST_LIE,
].sort((one, other) => one.id.localeCompare(other.id, 'en', { numeric: true }));

const UNDETECTABLE: readonly Undetectable[] = [
  {
    does: 'withholds an item from the start, in frames, listings and counts alike',
    why: 'A device cannot miss what it has never seen',
    limits: 'Any device that has seen the item notices (LIAR-35). Compare the list with the device that wrote it',
  },
  {
    does: 'shows two devices two different histories, each consistent in itself',
    why: 'Devices communicate only through the server',
    limits: 'Every item shown was written by a device of the user; nothing can be added or changed',
  },
  {
    does: 'delays or withholds everything; refuses writes; reports a device as revoked',
    why: 'The operator of the server can switch it off',
    limits: 'Data on the device stays readable; writes wait in the outbox',
  },
  {
    does: 'un-revokes a device that held the master key, for a device that did not see the revocation',
    why: 'The certificate of that device is still valid, and only the server states a revocation',
    limits:
      'A device that saw the revocation notices, in later runs too where it stores the device list (LIAR-62). Only a new phrase, and with it a new tenant, shuts out a holder of the master key',
  },
  {
    does: 'lies about the author of an item (`senderDevice`), or attributes it to another device',
    why: 'No tag covers it: all devices of a user tag with the same key',
    limits: 'Only devices of the user can write; the field is shown as a statement of the server',
  },
  {
    does: 'changes the name, glyph or last-seen times of a device in the list',
    why: 'The certificate covers only id and key',
    limits: 'Compare fingerprints, not names. At pairing the name is covered by the attestation (LIAR-69)',
  },
  {
    does: 'moves an item back into an earlier bin, or serves an older set of keys for the same content',
    why: 'A device made the tag of that state, and neither a move nor a re-wrap has its own timestamp',
    limits: 'The content is the same, and only devices of the user can open it',
  },
  {
    does: 'restores a deleted item on a device that never saw the delete, or under another epoch',
    why: 'A restored database does the same',
    limits: 'The event `reset` reports that the history is a different one; the user wrote the item',
  },
  {
    does: 'hides an empty bin, serves an earlier label of a bin or none, or changes slugs, times and counts of bins, or the figures of `/me`',
    why: 'No data on a device contradicts the lie',
    limits: 'The tag of an item covers its bin, so a missing bin that has items is noticed (LIAR-65)',
  },
  {
    does: 'keeps a change that it refused or did not answer, and makes it later, a delete that was taken back among them',
    why: 'A device of the user made its tag, and a delete names only the item',
    limits: 'An older write is noticed where a newer one is known (LIAR-24); a delete is reported as event `delete`',
  },
  {
    does: 'acknowledges a change and drops it, for a program that keeps its store in memory and ends before it catches up again, or lets another device write over the state before it',
    why: 'Only the device that wrote has the change, and a newer write looks the same where it was made knowing it',
    limits: 'A durable store keeps an acknowledged change until the stream brings it (LIAR-123, LIAR-127)',
  },
  {
    does: 'observes who is online and when, how much is written, which type and which bin',
    why: 'It needs this information to deliver',
    limits: 'It does not see contents, labels of bins or keys',
  },
  {
    does: 'sends, as the address of a blob, another host in the network of the device',
    why: 'A store may be on any host, and nothing distinguishes a right host from a wrong one',
    limits:
      'Only https (http if the server itself is reached over http), no token, no redirect; the response is used only if it decrypts. In a browser the CORS rules apply as well',
  },
  {
    does: 'sends endless junk',
    why: 'Any piece could be the last',
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

/** A name of the catalogue as the reference writes it. */
function spoken(name: string): string {
  const special = SPECIAL[name];
  if (special !== undefined) return special;
  const [how = '', ...rest] = name.split(' ');
  const what = rest.length === 0 ? '' : rest.join(' ').split(': ').map(words).join(', cause ');
  if (how === 'throws') return `rejects with ${what}`;
  if (how === 'problem') return `event \`problem\`: ${what}`;
  return what === '' ? `event ${code(how)}` : `event ${code(how)}, reason ${what}`;
}

const named = ({ named: names }: Told): string => (names.length === 0 ? 'Not reported' : names.map(spoken).join('; '));

const row = (...cells: readonly string[]): string => `| ${cells.join(' | ')} |`;

function tableOf(family: Family): string {
  const lies = CATALOGUE.filter((lie) => lie.family === family);
  return [
    `## ${FAMILIES[family]}`,
    '',
    row('', 'The server', 'Who notices', 'Reported as', 'Cost'),
    row('---', '---', '---', '---', '---'),
    ...lies.map((lie) => row(lie.id, lie.does, lie.notices, named(lie), lie.costs)),
    '',
  ].join('\n');
}

const HEAD = `# Attacks by the server

Our clients trust a server with delivery and nothing else. This page lists the attacks a server can try, who notices
them, the event, reason or error by which a program learns of them, and what they still cost. The tests run each numbered
attack against the client library, with a lying proxy in front of a real server. They check that the attack is reported as
listed here, that only items written by a device of the user are shown, and that no data on the device is lost. They also
check that the devices never sent a master key, secret key, phrase, visible code or content, or a key sealed for a device
that is not the user's.

*Event* is an event of \`Device\`; *rejects* is the error with which the call rejects. A \`ProtocolError\` has the listed
\`code\`, a \`CryptoRefusal\` the listed \`reason\`. An item that does not verify is not shown, and its last verified state is
kept: \`hidden\` lists such items, \`kept\` reads them. When the server is honest again, \`resync\` reads everything again
and repairs the rest.

\`npm run liar\` runs the attacks that apply to any client against another client: [Conformance](conformance.md#prove-a-client).
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
    const outcome = lie.named.length === 0 ? 'it has no effect' : `reported as: ${named(lie)}`;
    return `- **${lie.id}** A lying server ${lie.does}; ${outcome}.`;
  });
}
