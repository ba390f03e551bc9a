/** Options as text, read and bounded. Each reader throws `CommandError` `usage`. */
import { isIP, isIPv4 } from 'node:net';
import { randomBytes } from 'node:crypto';
import { readPrivate } from '../files/private.js';
import { baseOf } from '../sdk/http.js';
import { type Terminal, usageError as usage } from '../terminal/terminal.js';
import { DEVICE_LIST_MAX, PREFIX } from './fleet.js';
import { BOUNDS, isKind, KINDS, type Kind, type Storm } from './plan.js';
import type { Access } from './worker.js';

/** A number within its bounds. */
export function numberOf(name: keyof typeof BOUNDS, text: string): number {
  const [least, most] = BOUNDS[name];
  const whole = !['rate', 'connectRate', 'hold', 'seconds', 'warmUp'].includes(name);
  const value = /^\d{1,9}(\.\d{1,3})?$/.test(text) ? Number(text) : NaN;
  if (!(value >= least && value <= most) || (whole && !Number.isInteger(value)))
    throw usage(`--${flagOf(name)} takes a ${whole ? 'whole ' : ''}number from ${least} to ${most}.`);
  return value;
}

const flagOf = (name: string): string => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

/** `insert=80,list=20` as shares. */
export function mixOf(text: string): Partial<Record<Kind, number>> {
  const mix: Partial<Record<Kind, number>> = {};
  for (const part of text.split(',')) {
    const [kind = '', share = ''] = part.split('=');
    if (!isKind(kind) || !/^\d{1,4}$/.test(share))
      throw usage(`--mix takes shares of ${KINDS.join(', ')}: insert=80,list=20`);
    mix[kind] = Number(share);
  }
  if (Object.values(mix).every((share) => share === 0)) throw usage('--mix needs a share above 0.');
  return mix;
}

/** `10,0.5` as a storm at ten seconds of half of the sockets. */
export function stormOf(text: string): Storm {
  const [at = '', share = '', ...more] = text.split(',');
  const storm = { at: Number(at), share: Number(share) };
  const good = /^\d+(\.\d+)?$/.test(at) && /^(0?\.\d+|1)$/.test(share) && more.length === 0;
  if (!good || storm.at > BOUNDS.seconds[1]) throw usage('--storm takes seconds and a share: 10,0.5');
  return storm;
}

/** Source addresses of this machine. */
export function sourcesOf(text: string): string[] {
  const addresses = text.split(',').map((one) => one.trim());
  const range = /^(\d+\.\d+\.\d+)\.(\d{1,3})-(\d{1,3})$/;
  const all = addresses.flatMap((one) => {
    const [, net, from, to] = range.exec(one) ?? [];
    if (net === undefined) return [one];
    return Array.from({ length: Math.max(0, Number(to) - Number(from) + 1) }, (_, at) => `${net}.${Number(from) + at}`);
  });
  if (all.length === 0 || all.length > 1_024 || all.some((one) => isIP(one) === 0))
    throw usage('--from takes addresses of this machine: 127.0.1.1-20 or 10.0.0.5,10.0.0.6');
  return all;
}

/** `host:port`, `[::1]:7070`. */
export function endOf(name: string, text: string): { host: string; port: number } {
  const [, host = '', port = ''] = /^(\[[0-9a-f:]+\]|[A-Za-z0-9.-]+):(\d{1,5})$/i.exec(text) ?? [];
  if (host === '' || Number(port) > 65_535) throw usage(`--${name} takes host:port.`);
  return { host: host.replace(/^\[|\]$/g, ''), port: Number(port) };
}

/** The name of a run; random if none is given. Names of tenants and bins begin with it. */
export function nameOf(text: string | undefined): string {
  if (text === undefined) return `${PREFIX}${randomBytes(3).toString('hex')}`;
  if (!/^[a-z0-9]{1,20}$/.test(text)) throw usage('--name takes 1 to 20 of a-z and 0-9.');
  return `${PREFIX}${text}`;
}

/**
 * The server's origin. A server that is not on this machine must be confirmed by its host name: a load test of somebody
 * else's server is an attack.
 */
export async function confirmedUrl(terminal: Terminal, text: string, confirm: string | undefined): Promise<string> {
  let url: URL;
  try {
    url = new URL(text);
    baseOf(url.origin);
  } catch {
    throw usage('--url takes an address such as https://sync.example.org');
  }
  if (url.pathname !== '/' || url.username !== '' || url.password !== '')
    throw usage('--url takes an origin: no path, no user.');
  const { hostname, origin } = url;
  if (isLoopback(hostname)) return origin;
  let given = confirm;
  if (given === undefined && terminal.interactive)
    given = await terminal.ask(
      `This loads ${hostname}, which is not this machine. If it is yours, type its host name: `,
    );
  if (given?.trim() === hostname) return origin;
  throw usage(
    `${hostname} is not this machine: nothing was done.`,
    `If the server is yours to load, add --confirm ${hostname}`,
    'not_confirmed',
  );
}

/** Loopback addresses, and the one name that cannot be another machine's (RFC 6761). */
const isLoopback = (host: string): boolean =>
  host === 'localhost' || host === '[::1]' || (isIPv4(host) && host.startsWith('127.'));

const SECRET_MAX = 4_096;

/** The text of a file that only its owner reads. */
async function privateText(terminal: Pick<Terminal, 'note'>, file: string, maxBytes: number): Promise<string> {
  const bytes = await readPrivate(file, maxBytes, (text) => terminal.note(text));
  if (bytes === undefined) throw usage(`${file}: no such file`);
  return bytes.toString('utf8');
}

/** A secret from a file that only its owner reads, else from the environment; undefined: neither. Never an argument. */
export async function secretOf(
  terminal: Pick<Terminal, 'env' | 'note'>,
  file: string | undefined,
  variable: string,
): Promise<string | undefined> {
  if (file === undefined) return terminal.env[variable] === '' ? undefined : terminal.env[variable];
  return (await privateText(terminal, file, SECRET_MAX)).trim();
}

/** The credentials for making or reaching tenants, also of an agent. `required`: throws if there are none. */
export async function accessOf(
  terminal: Terminal,
  { deviceList, adminTokenFile }: { readonly deviceList?: string; readonly adminTokenFile?: string },
  required = true,
): Promise<Access> {
  if (deviceList !== undefined) return { deviceList: await privateText(terminal, deviceList, DEVICE_LIST_MAX) };
  const adminToken = await secretOf(terminal, adminTokenFile, 'ADMIN_TOKEN');
  if (adminToken !== undefined || !required) return { adminToken };
  throw usage(
    'there is no ADMIN_TOKEN and no --device-list',
    "Set ADMIN_TOKEN to the server's (multi mode), or give --device-list (service-load devices).",
  );
}

/** The secret that coordinator and agents share. */
export async function sharedSecret(terminal: Terminal, file: string | undefined): Promise<string> {
  const secret = await secretOf(terminal, file, 'LOAD_SECRET');
  if (secret !== undefined && secret.length >= 16) return secret;
  throw usage(
    'coordinator and agents need the same secret of 16 characters or more',
    'Set LOAD_SECRET, or --secret-file.',
  );
}
