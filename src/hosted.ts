/** Tenants by host name, put together (contract 12). */
import { apexOf } from './config.js';
import type { HostingService } from './front/ports.js';
import { TenantHosts } from './hosting/hosts.js';
import { Signup } from './hosting/signup.js';
import type { Parts, TenantParts } from './parts.js';
import { HostingStore } from './postgres/hosting-store.js';

/** What multi mode adds. */
export interface Hosting {
  readonly hosts: TenantHosts;
  readonly signup: Signup;
}

/** Reads the names of all tenants. Rejects with `unavailable`. */
export async function composeHosting(
  { config, clock, database, stops, onFault }: Parts,
  tenants: TenantParts,
): Promise<Hosting> {
  const store = new HostingStore(database.pool);
  const hosts = new TenantHosts({
    store,
    baseDomain: apexOf(config),
    clock,
    onFault,
    onFreed: (tenant) => tenants.registry.forget(tenant),
  });
  await hosts.start();
  stops.push(() => hosts.close());
  tenants.onHint = (tenant) => hosts.hint(tenant);
  const { protocol, port } = new URL(config.publicUrl ?? `https://${apexOf(config)}`);
  const announce = (tenant: string): void => tenants.feed.announce(tenant, 0, 0);
  return { hosts, signup: new Signup({ store, hosts, clock, origin: { protocol, port }, announce }) };
}

/** As the front end asks it. */
export const hostingService = ({ hosts, signup }: Hosting): HostingService => ({
  isApex: (host) => hosts.isApex(host),
  serves: (host) => hosts.serves(host),
  signUp: (body) => signup.signUp(body),
});
