/** A small plan of a load run, and what can exist on the server before it: test tenants, and a list of devices. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { certifyDevice } from '../../src/crypto/device.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { FleetTenant } from '../../src/load/fleet.js';
import type { Plan } from '../../src/load/plan.js';
import { newId } from './client.js';
import type { Load } from './load-program.js';
import { ADMIN_TOKEN, type Running } from './server.js';

export const urlOf = ({ port }: Pick<Running, 'port'>): string => `http://127.0.0.1:${port}`;
export const deviceBody = () => ({
  id: newId(),
  pubkey: Buffer.from(nodeSodium.boxKeyPair().publicKey).toString('base64url'),
  cert: Buffer.from(nodeSodium.random(32)).toString('base64url'),
});

export const PLAN: Plan = {
  ...{ name: 'load-plan', url: '', tenants: 1, devices: 3, connectRate: 1_000, hold: 0, rate: 60, seconds: 1 },
  ...{
    warmUp: 0,
    arrivals: 'fixed',
    mix: { insert: 1 },
    size: 300,
    blobSize: 100,
    storms: [],
    connections: 16,
    from: [],
  },
};

/** A tenant of one device, as a run keeps it. */
export function fleetTenant(more: Partial<FleetTenant> = {}): FleetTenant {
  const { publicKey } = nodeSodium.boxKeyPair();
  const masterKey = nodeSodium.random(32);
  const id = newId();
  const device = { id, token: 'token', publicKey, cert: certifyDevice(nodeSodium, masterKey, { id, publicKey }) };
  return { host: 'a.sync.test', slug: 'a', masterKey, devices: [device], binId: 'inbox', ...more };
}

/** Makes a test tenant with one device. */
export async function testTenant(server: Running, subdomain: string): Promise<void> {
  const body = { subdomain, devices: [deviceBody()] };
  await server.wire.ask('POST', '/admin/test-tenants', { token: ADMIN_TOKEN, body });
}

/** A list of devices in the tenant of a server in single mode; `token` is of the first. */
export async function listOfDevices(
  program: Load,
  server: Running,
): Promise<{ readonly list: string; readonly token: string; readonly masterKey: string }> {
  const list = join(program.folder, 'devices.json');
  const made = await program.call('devices', '--url', urlOf(server), '--count', '2', '--out', list);
  if (made.code !== 0) throw new Error(made.stderr);
  const { tenants } = JSON.parse(readFileSync(list, 'utf8')) as {
    tenants: { devices: { token: string }[]; masterKey: string }[];
  };
  return { list, token: tenants[0]?.devices[0]?.token ?? '', masterKey: tenants[0]?.masterKey ?? '' };
}
