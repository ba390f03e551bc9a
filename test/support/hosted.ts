/** Hosted servers, among them those that bill through a stand-in, and their tenants. */
import { claim, type TestDevice } from './devices.js';
import type { WithTeardown } from './postgres.js';
import { runServer, type Running, type RunOptions } from './server.js';
import { checkoutDone, deliver, payerOf, StripeStandIn, type Payer } from './stripe.js';
import { named, Wire, type Json, type Reply } from './wire.js';

export const BASE = 'sync.test';
/** Variables of a server with many tenants, each with a name under `BASE`. */
export const MULTI = { TENANT_MODE: 'multi', BASE_DOMAIN: BASE } as const;

/** A hosted server, its apex, and a way to each tenant's host. */
export interface Hosted extends Running {
  readonly apex: Wire;
  readonly at: (slug: string) => Wire;
}

/** One that bills. */
export interface Billed extends Hosted {
  readonly stripe: StripeStandIn;
}

interface BilledOptions extends RunOptions {
  /** Another instance's. */
  readonly stripe?: StripeStandIn;
}

/** To a server of this machine by another name, until the test is over. */
export function wireAt(t: WithTeardown, port: number, host: string): Wire {
  const wire = new Wire(port, named(host));
  t.teardown(() => wire.close());
  return wire;
}

/** Starts a server with many tenants. */
export async function hosted(t: WithTeardown, options: RunOptions = {}): Promise<Hosted> {
  const server = await runServer(t, { ...options, env: { ...MULTI, ...options.env } });
  const at = (slug: string): Wire => wireAt(t, server.port, `${slug}.${BASE}`);
  return { ...server, at, apex: wireAt(t, server.port, BASE) };
}

/** Starts a server that bills. */
export async function billed(t: WithTeardown, options: BilledOptions = {}): Promise<Billed> {
  const { stripe = await StripeStandIn.start(t), ...run } = options;
  return { ...(await hosted(t, { ...run, env: { ...stripe.env, ...run.env } })), stripe };
}

let addresses = 0;
/** From a network of its own: signups are limited per address and network. */
export const signUp = async (apex: Wire, subdomain: string, email = `${subdomain}@example.com`): Promise<Reply> =>
  apex.post(
    '/signup',
    { email, subdomain },
    { headers: { 'x-forwarded-for': `45.${++addresses & 255}.${addresses >> 8}.7` } },
  );

/** A tenant that was signed up, and the device that claimed it. */
export interface Neighbour {
  readonly host: string;
  readonly wire: Wire;
  readonly device: TestDevice;
}

/** Signs up and claims at the hosted server on this port. */
export async function neighbour(t: WithTeardown, port: number, slug: string): Promise<Neighbour> {
  const claimToken = (await signUp(wireAt(t, port, BASE), slug)).text('claimToken');
  const host = `${slug}.${BASE}`;
  const wire = wireAt(t, port, host);
  return { host, wire, device: await claim(wire, { claimToken }) };
}

/** A tenant that was signed up and claimed. */
export interface BilledTenant {
  readonly id: string;
  readonly wire: Wire;
  readonly device: TestDevice;
  readonly payer: Payer;
}

/** Signs up and claims. It is still pending, unless `paidAt` (ms) says when its checkout was paid. */
export async function tenantOf(server: Billed, slug: string, paidAt?: number): Promise<BilledTenant> {
  const claimToken = (await signUp(server.apex, slug)).text('claimToken');
  const wire = server.at(slug);
  const id = (await wire.get('/service/status')).text('tenantId');
  const payer = payerOf(id);
  if (paidAt !== undefined) await mustDeliver(server.apex, checkoutDone(payer, paidAt));
  return { id, wire, payer, device: await claim(wire, { claimToken }) };
}

/** Delivers an event, signed at `now`; throws unless it is taken. */
export async function mustDeliver(wire: Wire, event: Json, now: number = Date.now()): Promise<void> {
  const reply = await deliver(wire, event, { at: now });
  if (reply.outcome !== '200') throw new Error(`the webhook was not taken: ${reply.outcome} ${reply.raw}`);
}

/** The tenant's state as the database has it. */
export async function stateOf(server: Running, tenantId: string): Promise<unknown> {
  return (await server.sql('SELECT state FROM tenants WHERE id = $1', [tenantId]))[0]?.['state'];
}
