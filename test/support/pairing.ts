/** Pairing sessions of tests, step by step. */
import { ServiceError } from '../../src/protocol/errors.js';
import type { Pairing } from '../../src/server/pairing/pairing.js';
import {
  claimedWorld,
  joinBody,
  newCode,
  newWorld,
  random,
  announced,
  type Instance,
  type InstanceOptions,
  type TestDevice,
  type World,
} from './accounts.js';
import { until } from './events.js';

/** A world with its first device, E, and a session that E has opened. */
export interface Opened extends World {
  readonly existing: TestDevice;
  readonly code: string;
}

/** A caller that never leaves. */
export const stays = (): AbortSignal => new AbortController().signal;

/** A fresh world with a session. */
export async function open(t: Parameters<typeof newWorld>[0], options: Partial<InstanceOptions> = {}): Promise<Opened> {
  const world = await newWorld(t, options);
  const [existing] = (await claimedWorld(world)) as [TestDevice];
  return openIn(world, existing);
}

/** A session more. */
export async function openIn(world: World, existing: TestDevice): Promise<Opened> {
  const code = newCode();
  await world.a.pairing.init(world.tenantId, existing.id, { code, epk: random(32) });
  return { ...world, existing, code };
}

/** Tenants of which calls are held. */
export const heldBy = (pairing: Pairing): number => pairing['waiters']['tenants'].size;

/** Resolves when the held call on this instance waits for its session, having looked, or when it has ended. */
export async function waits(instance: Instance, timers: () => number, ended = (): boolean => false): Promise<void> {
  await until('a call that waits', () => ended() || (heldBy(instance.pairing) > 0 && timers() > 0));
}

/** The new device has asked: the session is requested. The call ends as its caller leaves. */
export async function request(
  world: Opened,
  device: TestDevice,
  more: Parameters<typeof joinBody>[2] = {},
): Promise<void> {
  const caller = new AbortController();
  const asked = announced(world.a);
  const joining = world.a.pairing.fetchNpk(world.tenantId, joinBody(world.code, device, more), caller.signal);
  await Promise.race([asked, joining]);
  caller.abort();
  await joining;
}

/** The same call again: its result, `pending` or the refusal. */
export async function ask(
  world: Opened,
  device: TestDevice,
  more: Parameters<typeof joinBody>[2] = {},
): Promise<unknown> {
  return world.b.pairing
    .fetchNpk(world.tenantId, joinBody(world.code, device, more), AbortSignal.abort())
    .catch((error: unknown) => {
      if (error instanceof ServiceError) return error.error;
      throw error;
    });
}
