/** Instances on one database, connected by hints that a test may delay, repeat or drop. */
import type { Clock } from '../../src/protocol/clock.js';
import type { Shape } from '../../src/protocol/shape.js';
import { PostgresTenantLoader } from '../../src/server/storage/tenant-loader.js';
import type { Actor } from '../../src/server/tenant/actor.js';
import type { Heard, SocketPort } from '../../src/server/tenant/ports.js';
import { TenantRegistry } from '../../src/server/tenant/registry.js';
import type { Session } from '../../src/server/tenant/session.js';
import { BIN, bytes, deviceId, OTHER_BIN } from './changes.js';
import { Notifier } from './events.js';
import type { PostgresLogs } from './logs.js';

export const EPOCH = 'epoch';

/** Passes a hint to another instance: now, later, twice or never. */
type Post = (deliver: () => void) => void;

/** For an instance that gets no notifications: each state is as old as its last comparison. */
export const NOTHING_HEARD: Heard = { since: Infinity, until: -Infinity };

interface Instance {
  readonly registry: TenantRegistry;
  /** Loads the tenant's actor. */
  readonly actor: (tenantId: string) => Promise<Actor>;
}

/** `count` instances; every hint of one goes to each other one through `post`. */
export function instances(logs: PostgresLogs, options: { count: number; clock: Clock; post: Post }): Instance[] {
  const all: Instance[] = [];
  for (let n = 0; n < options.count; n++) {
    const registry: TenantRegistry = new TenantRegistry({
      lanes: logs.moreLanes(),
      log: logs.log,
      loader: new PostgresTenantLoader(logs.pool, options.clock, (error) => logs.faults.push(error)),
      announcer: {
        heard: NOTHING_HEARD,
        announce: (tenantId, head, generation) => {
          for (const other of all) {
            if (other.registry !== registry) options.post(() => other.registry.headHint(tenantId, head, generation));
          }
        },
        publish: (tenantId, made, { summary, generation }) => {
          // Some rows do not fit: then the head alone is announced.
          const rows = summary.version % 4 === 0 ? [] : made.map((row) => row.copy());
          for (const { registry: other } of all) {
            if (other === registry) continue;
            if (rows.length === 0) options.post(() => other.headHint(tenantId, summary.version, generation));
            else options.post(() => other.published(tenantId, generation, { rows, summary }));
          }
        },
        subscribe: () => undefined,
      },
      purger: { purge: () => true },
      onFault: (error) => logs.faults.push(error),
      clock: options.clock,
      history: { epoch: EPOCH },
    });
    const actor = async (tenantId: string): Promise<Actor> => {
      const found = await registry.get(tenantId);
      if (found === undefined) throw new Error(`no tenant ${tenantId}`);
      return found;
    };
    all.push({ registry, actor });
  }
  return all;
}

/** A tenant with two bins and so many devices. */
export async function tenantWith(logs: PostgresLogs, devices: number): Promise<string> {
  const tenantId = await logs.newTenant();
  await logs.pool.query(
    `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
     SELECT $1, slug, slug, 1, 1, 1 FROM unnest($2::text[]) slug`,
    [tenantId, [BIN, OTHER_BIN]],
  );
  for (let n = 1; n <= devices; n++) await addDevice(logs, tenantId, n);
  return tenantId;
}

/** Joins a device as pairing does, under the tenant's lock. */
async function addDevice(logs: PostgresLogs, tenantId: string, n: number): Promise<void> {
  const client = await logs.pool.connect();
  try {
    await client.query('BEGIN');
    await client.query('SELECT FROM tenants WHERE id = $1 FOR UPDATE', [tenantId]);
    const values = [tenantId, deviceId(n), bytes(`pubkey ${n}`, 32)];
    await client.query("SELECT add_device($1, $2, 'device', 'phone', $3, NULL, 1000, 1)", values);
    await client.query('COMMIT');
  } finally {
    client.release();
  }
}

/** A socket that records the versions of its frames. */
export class FrameRecorder implements SocketPort {
  readonly shape: Shape = 'a';
  closing = false;
  readonly versions: number[] = [];
  /** Size of the frames with these versions. */
  bytes = 0;
  closedWith: number | undefined;
  caughtUp: number | undefined;
  session: Session | undefined;
  private readonly changed = new Notifier();

  constructor(
    readonly deviceId: string,
    readonly tokenEpoch: number,
  ) {}

  send(frames: readonly string[]): number {
    for (const text of frames) {
      const frame = JSON.parse(text) as { type: string; version?: number };
      if (frame.type === 'caught_up') this.caughtUp = frame.version;
      else if (frame.version !== undefined) {
        this.versions.push(frame.version);
        this.bytes += text.length;
      }
    }
    this.changed.notify();
    return 0;
  }

  close(code: number): void {
    this.closedWith ??= code;
    this.changed.notify();
  }

  /** Resolves once `enough` is true. */
  until(enough: () => boolean): Promise<void> {
    return this.changed.until(enough);
  }
}

/** A live socket of a device. */
export async function listen(actor: Actor, n: number): Promise<FrameRecorder> {
  const recorder = new FrameRecorder(deviceId(n), actor.device(deviceId(n))?.tokenEpoch ?? 0);
  const session = actor.open(recorder);
  if (typeof session === 'string') throw new Error(session);
  recorder.session = session;
  actor.hello(session, { since: 0, epoch: EPOCH, acks: false });
  await recorder.until(() => recorder.caughtUp !== undefined);
  return recorder;
}
