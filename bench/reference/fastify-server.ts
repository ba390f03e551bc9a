/**
 * The same work with widely used libraries: Fastify, pg and Socket.IO, used as in their documentation.
 * Verifies the bearer token's MAC, validates the body by its JSON schema, inserts the item with a version taken under
 * the tenant's row lock in one transaction, and pushes it to the tenant's other sockets.
 *
 *   fastify-server url=... secret=...
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import Fastify from 'fastify';
import pg from 'pg';
import { Server } from 'socket.io';
import { option, say } from './say.js';

interface Caller {
  readonly tenant: string;
  readonly device: string;
}

interface Body {
  readonly id: string;
  readonly binId: string;
  readonly type: string;
  readonly ts: number;
  readonly payloadEnc: {
    readonly ct: string;
    readonly nonce: string;
    readonly keys: Readonly<Record<string, string>>;
    readonly master?: { readonly nonce: string; readonly ct: string };
    readonly sig: string;
  };
}

const secret = option('secret');

/** Verifies a token: tenant.device.expiry.mac, with the MAC over the first three. */
function callerOf(token: string): Caller | undefined {
  const end = token.lastIndexOf('.');
  const mac = createHmac('sha256', secret).update(token.slice(0, end)).digest();
  const given = Buffer.from(token.slice(end + 1), 'base64url');
  if (given.length !== mac.length || !timingSafeEqual(given, mac)) return undefined;
  const [tenant = '', device = '', expiry] = token.slice(0, end).split('.');
  return Number(expiry) > Date.now() ? { tenant, device } : undefined;
}

const BASE64 = '^[A-Za-z0-9_-]+$';
const schema = {
  body: {
    type: 'object',
    required: ['id', 'binId', 'type', 'ts', 'payloadEnc'],
    properties: {
      id: { type: 'string', pattern: '^[0-7][0-9A-HJKMNP-TV-Z]{25}$' },
      binId: { type: 'string', pattern: '^[A-Za-z0-9_-]{1,64}$' },
      type: { type: 'string', maxLength: 16 },
      ts: { type: 'integer', minimum: 1_000_000_000_000 },
      payloadEnc: {
        type: 'object',
        required: ['ct', 'nonce', 'keys', 'sig'],
        properties: {
          ct: { type: 'string', pattern: BASE64, maxLength: 90_000 },
          nonce: { type: 'string', pattern: BASE64 },
          keys: { type: 'object', additionalProperties: { type: 'string', pattern: BASE64 } },
          master: {
            type: 'object',
            required: ['nonce', 'ct'],
            properties: { nonce: { type: 'string' }, ct: { type: 'string' } },
          },
          sig: { type: 'string', pattern: BASE64 },
        },
      },
    },
  },
};

const pool = new pg.Pool({ connectionString: option('url'), max: 16 });
pool.on('error', (error) => process.stderr.write(`${error.message}\n`));

/** Inserts under the tenant's row lock; the version is head + 1. A known id returns its existing version. */
async function insert(caller: Caller, body: Body): Promise<{ version: number; fresh: boolean }> {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const locked = await client.query<{ head: string }>({
      name: 'lock',
      text: 'UPDATE tenants SET head = head + 1 WHERE id = $1 RETURNING head',
      values: [caller.tenant],
    });
    const version = Number(locked.rows[0]?.head);
    const { ct, nonce, sig, keys, master } = body.payloadEnc;
    const inserted = await client.query({
      name: 'insert',
      text: `INSERT INTO items (tenant_id, id, version, bin_id, type, ts, sender_device, ct, nonce, sig, keys, master)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (tenant_id, id) DO NOTHING`,
      values: [
        caller.tenant,
        body.id,
        version,
        body.binId,
        body.type,
        body.ts,
        caller.device,
        Buffer.from(ct, 'base64url'),
        Buffer.from(nonce, 'base64url'),
        Buffer.from(sig, 'base64url'),
        JSON.stringify(keys),
        master ? JSON.stringify(master) : null,
      ],
    });
    if (inserted.rowCount === 1) {
      await client.query('COMMIT');
      return { version, fresh: true };
    }
    await client.query('ROLLBACK');
    const stored = await client.query<{ version: string }>(
      'SELECT version FROM items WHERE tenant_id = $1 AND id = $2',
      [caller.tenant, body.id],
    );
    return { version: Number(stored.rows[0]?.version), fresh: false };
  } finally {
    client.release();
  }
}

const app = Fastify({ bodyLimit: 256 * 1024 });
const io = new Server(app.server, { transports: ['websocket'], serveClient: false });

io.use((socket, next) => {
  const token: unknown = socket.handshake.auth['token'];
  const caller = typeof token === 'string' ? callerOf(token) : undefined;
  if (caller === undefined) {
    next(new Error('unauthorized'));
    return;
  }
  void socket.join([caller.tenant, caller.device]);
  next();
});

/**
 * Emits a tenant's frames in the order of their versions. The row lock orders the commits, but not their reports: those of
 * two connections may overtake each other, and the audit would count that as a frame that was missed.
 */
class OrderedFrames {
  private reached = 0;
  private readonly waiting = new Map<number, () => void>();

  add(version: number, emit: () => void): void {
    this.waiting.set(version, emit);
    for (let next = this.waiting.get(this.reached + 1); next; next = this.waiting.get(this.reached + 1)) {
      this.waiting.delete(++this.reached);
      next();
    }
  }
}

const frames = new Map<string, OrderedFrames>();

function framesOf(tenant: string): OrderedFrames {
  const known = frames.get(tenant) ?? new OrderedFrames();
  frames.set(tenant, known);
  return known;
}

app.post<{ Body: Body }>('/api/items', { schema }, async (request, reply) => {
  const caller = callerOf(request.headers.authorization?.slice(7) ?? '');
  if (caller === undefined) return await reply.code(401).send({ error: { code: 'unauthorized' } });
  const { version, fresh } = await insert(caller, request.body);
  if (fresh) {
    const { type, ...rest } = request.body;
    const row = { ...rest, itemType: type, senderDevice: caller.device, version, deletedAt: null };
    framesOf(caller.tenant).add(version, () => io.to(caller.tenant).except(caller.device).emit('item', row));
  }
  return { id: request.body.id, version };
});

await app.listen({ host: '127.0.0.1', port: 0 });
const address = app.server.address();
say({ event: 'listening', port: typeof address === 'object' && address ? address.port : 0 });
