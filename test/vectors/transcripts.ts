/** What goes over the wire when a tenant is claimed and a device paired, from a real server and with fixed keys. */
import { once } from 'node:events';
import WebSocket from 'ws';
import * as example from './example.js';

type Json = Record<string, unknown>;

/** Placeholders for what a server draws or measures, by field name. */
const DRAWN: Readonly<Record<string, unknown>> = {
  ...{ token: 'TOKEN', ticket: 'TICKET', tenantId: 'TENANT-ID', epoch: 'EPOCH', lookupId: 'LOOKUP-ID' },
  ...{ pairedAt: 1_760_000_000_000, expiresAt: 1_760_000_300_000, version: undefined, storageUsedBytes: undefined },
};
/** The end of a ticket, sixty seconds after it was drawn; every other end is that of a pairing session. */
const TICKET_END = 1_760_000_060_000;
const isNumber = (value: unknown): boolean => typeof value === 'number';

/** The value with placeholders for the server's own. Versions of items are kept: they follow from what was written. */
function settled(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(settled);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, inner]) => {
      const drawn = name === 'expiresAt' && 'ticket' in value ? TICKET_END : DRAWN[name];
      return [name, drawn === undefined || (isNumber(drawn) && !isNumber(inner)) ? settled(inner) : drawn];
    }),
  );
}

const shown = (value: unknown): string => JSON.stringify(settled(value), null, 2);

/** A conversation as the page shows it. */
class Talk {
  private readonly lines: string[] = [];

  constructor(private readonly origin: string) {}

  get text(): string {
    return `\`\`\`text\n${this.lines.join('\n')}\n\`\`\``;
  }

  said(line: string, value?: unknown): void {
    this.lines.push(line, ...(value === undefined ? [] : [shown(value)]));
  }

  async call(who: string, target: string, { token, body }: { token?: string; body?: Json } = {}): Promise<Json> {
    const { status, reply } = await this.silent(target, { token, body });
    this.asked(who, target, { token, body });
    this.said(`< ${status}`, reply);
    return reply;
  }

  asked(who: string, target: string, { token, body }: { token?: string; body?: Json } = {}): void {
    this.said(`${who} > ${target}${token === undefined ? '' : '   Authorization: Bearer TOKEN'}`, body);
  }

  async silent(target: string, { token, body }: { token?: string; body?: Json } = {}) {
    const [method = '', path = ''] = target.split(' ');
    const headers: Record<string, string> = { 'X-Wire-Shape': 'a' };
    if (token !== undefined) headers['Authorization'] = `Bearer ${token}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    const response = await fetch(`${this.origin}${path}`, { method, headers, body: body && JSON.stringify(body) });
    return { status: response.status, reply: (await response.json()) as Json };
  }
}

/** A socket whose frames are read one by one, without pings. */
async function socketOf(origin: string, ticket: unknown) {
  const socket = new WebSocket(`${origin.replace('http', 'ws')}/ws?ticket=${String(ticket)}&shape=a`);
  const frames: Json[] = [];
  const waiting: ((frame: Json) => void)[] = [];
  socket.on('message', (data: Buffer) => {
    const frame = JSON.parse(data.toString('utf8')) as Json;
    if (frame['type'] === 'ping') return;
    const take = waiting.shift();
    if (take === undefined) frames.push(frame);
    else take(frame);
  });
  await once(socket, 'open');
  const next = async (): Promise<Json> => frames.shift() ?? new Promise((resolve) => waiting.push(resolve));
  return { send: (frame: Json) => socket.send(JSON.stringify(frame)), next, close: () => socket.close() };
}

/** Claims the empty server at this origin and pairs a device. Returns the two sections of the page on Pairing. */
export async function transcripts(origin: string): Promise<{ readonly claim: string; readonly pairing: string }> {
  const { FIRST, SECOND } = example;
  const claim = new Talk(origin);
  const body = {
    ...{ deviceId: FIRST.id, name: FIRST.name, glyph: FIRST.glyph, pubkey: example.base64url(FIRST.keys.publicKey) },
    deviceCert: example.base64url(example.certOf(FIRST)),
    recoveryPubkey: example.base64url(example.RECOVERY_PUBKEY),
  };
  const token = String((await claim.call('E', 'POST /api/devices/bootstrap', { body }))['token']);
  const me = await claim.silent('GET /api/me', { token });
  claim.asked('E', 'GET /api/me', { token });
  claim.said(`< ${me.status}`);
  claim.said('{ "tenantId": "TENANT-ID", "epoch": "EPOCH", "headVersion": 0, "versionSum": 0, ... }');
  const { ticket } = await claim.call('E', 'POST /api/ws-ticket', { token, body: {} });
  const socket = await socketOf(origin, ticket);
  claim.said('E > GET /ws?ticket=TICKET&shape=a');
  claim.said('< 101');
  const hello = { type: 'hello', since: 0, acks: true };
  socket.send(hello);
  claim.said('E > frame', hello);
  claim.said('< frame', await socket.next());
  await claim.call('E', 'POST /api/items', { token, body: example.BODY_A });
  claim.said('< frame', await socket.next());
  await claim.call('E', 'GET /api/items?since=0', { token });

  const pairing = new Talk(origin);
  await pairing.call('E', 'POST /api/devices/pair-init', {
    token,
    body: { code: example.WIRE_CODE, epk: example.EPK },
  });
  await pairing.call('N', 'POST /api/devices/pair-fetch-epk', { body: { code: example.WIRE_CODE } });
  const request = {
    ...{ code: example.WIRE_CODE, deviceId: SECOND.id, host: example.HOST },
    ...{ pubkey: example.base64url(SECOND.keys.publicKey), name: SECOND.name, glyph: SECOND.glyph },
    attestation: example.ATTESTATION,
  };
  const held = pairing.silent('POST /api/devices/pair-fetch-npk', { body: request });
  pairing.asked('N', 'POST /api/devices/pair-fetch-npk', { body: request });
  pairing.said('E < frame', await socket.next());
  const release = { code: example.WIRE_CODE, ...example.RELEASE };
  const wrapped = await pairing.silent('POST /api/devices/pair-wrap', { token, body: release });
  pairing.asked('E', 'POST /api/devices/pair-wrap', { token, body: release });
  pairing.said(`E < ${wrapped.status}`, wrapped.reply);
  const { status, reply } = await held;
  pairing.said(`N < ${status}`, reply);
  pairing.said('E < frame', await socket.next());
  socket.close();
  return { claim: claimSection(claim.text), pairing: pairingSection(pairing.text) };
}

const claimSection = (text: string): string => `## Claiming, word for word

A claim up to the first item, as it goes over the wire in shape A. \`>\` is what the client sends, \`<\` what it gets. Capitals stand
for what the server draws; times are the server's too. The keys are those of
[One item, byte for byte](cryptography.md#one-item-byte-for-byte), whose item is written here. Not shown: the header
\`X-Wire-Shape: a\` of every request, \`Content-Type: application/json\` of every body, and the frames \`ping\` and \`pong\`.

${text}

Of the reply to \`GET /api/me\` only the fields that a client uses here are shown. The \`ack\` moves the cursor to 1, not the reply to the write.
`;

const pairingSection = (text: string): string => `## Pairing, word for word

E is the device of the transcript above; both dial \`${example.HOST}\`. What both compute:

${example.PAIRING_VALUES}

${text}

The held reply to N and the reply and frame to E are in no order to each other.
`;

/** The page with this section in place of the one under the same heading. Throws where there is none. */
export function withSection(page: string, section: string): string {
  const [heading = ''] = section.split('\n', 1);
  const start = page.indexOf(`${heading}\n`);
  if (start < 0) throw new Error(`the page has no section '${heading}'`);
  const next = page.indexOf('\n## ', start + heading.length);
  return page.slice(0, start) + (next < 0 ? section : `${section}${page.slice(next)}`);
}
