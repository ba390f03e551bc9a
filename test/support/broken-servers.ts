/** Servers that break rules, and whether the conformance kit sees just that. */
import type { Test } from 'tap';
import { runKit, type Result } from '../conformance/kit.js';
import { Mutant, type Mutation } from './mutant.js';
import { ADMIN_TOKEN, runServer } from './server.js';
import type { Shape } from './wire.js';

type Json = Record<string, unknown>;

interface Broken {
  readonly what: string;
  readonly only: readonly string[];
  readonly shapes?: readonly Shape[];
  /** Ids that must fail, in the order of RULES.md; no others of `only` may. */
  readonly fails: readonly string[];
  readonly mutation: () => Mutation;
}

const codeOf = (body: Json | undefined): unknown => (body?.['error'] as Json | undefined)?.['code'];
const without = (body: Json, ...fields: readonly string[]): Json =>
  Object.fromEntries(Object.entries(body).filter(([key]) => !fields.includes(key)));
const isPage = (method: string, path: string): boolean => method === 'GET' && path.startsWith('/api/items?');
const isWrite = (method: string, path: string): boolean => method === 'POST' && /^\/api\/items(\?|$)/.test(path);

/** Versions of writes by item: the second answer with the same one is a retry. */
function pushesRetries(): Mutation {
  const seen = new Map<unknown, unknown>();
  return {
    answer({ method, path, body }, mutant) {
      if (!isWrite(method, path) || body?.['version'] === undefined) return undefined;
      const { id, version } = body;
      if (seen.get(id) === version) mutant.push({ type: 'delete', id, version });
      seen.set(id, version);
      return undefined;
    },
  };
}

/** Remembers who drew a ticket, and opens a socket with his token whenever it is shown. */
function keepsTickets(): Mutation {
  const owners = new Map<string, string>();
  return {
    answer({ path, token, body }) {
      if (path === '/api/ws-ticket' && typeof body?.['ticket'] === 'string')
        owners.set(body['ticket'], (token ?? '').replace('Bearer ', ''));
      return undefined;
    },
    upgrade(path) {
      const url = new URL(path, 'http://x');
      const owner = owners.get(url.searchParams.get('ticket') ?? '');
      if (owner === undefined) return path;
      url.searchParams.delete('ticket');
      url.searchParams.set('token', owner);
      return `${url.pathname}${url.search}`;
    },
  };
}

export const BROKEN: readonly Broken[] = [
  {
    what: 'another status: 400 where an item is unknown',
    only: ['DEL', 'MOVE', 'ERR-03'],
    fails: ['ERR-03', 'DEL-05', 'MOVE-06'],
    mutation: () => ({ answer: ({ body }) => (codeOf(body) === 'item_not_found' ? { status: 400 } : undefined) }),
  },
  {
    what: 'a missing field: no server_ts in B',
    only: ['ITEM', 'SHAPE-01', 'SHAPE-03', 'SHAPE-08', 'SHAPE-09', 'RETRY'],
    shapes: ['b'],
    fails: ['SHAPE-03', 'SHAPE-08', 'ITEM-01'],
    mutation: () => ({
      answer: ({ method, path, body }) =>
        isWrite(method, path) && body ? { body: without(body, 'server_ts') } : undefined,
    }),
  },
  {
    what: 'an extra push: a retry is told',
    only: ['RETRY', 'ITEM-07', 'ITEM-36'],
    shapes: ['a'],
    fails: ['RETRY-01', 'RETRY-17'],
    mutation: pushesRetries,
  },
  {
    what: 'a gap: the second row of long pages is left out',
    only: ['LIST-01', 'LIST-04', 'LIST-05', 'LIST-10', 'LIST-11', 'LIST-13', 'LIST-17'],
    shapes: ['b'],
    fails: ['LIST-01', 'LIST-04', 'LIST-05', 'LIST-11'],
    mutation: () => ({
      answer({ method, path, body }) {
        const rows = body?.['items'];
        if (!isPage(method, path) || !Array.isArray(rows) || rows.length < 40) return undefined;
        return { body: { ...body, items: [...(rows as unknown[]).slice(0, 1), ...(rows as unknown[]).slice(2)] } };
      },
    }),
  },
  {
    what: "a wrong nextSince: the last row's version, also at the end",
    only: ['LIST-01', 'LIST-04', 'LIST-05', 'LIST-10', 'LIST-11', 'LIST-13', 'LIST-17'],
    shapes: ['a'],
    fails: ['LIST-11'],
    mutation: () => ({
      answer({ method, path, body }) {
        const rows = body?.['items'];
        if (!isPage(method, path) || !Array.isArray(rows) || rows.length === 0) return undefined;
        return { body: { ...body, nextSince: (rows.at(-1) as Json)['version'] } };
      },
    }),
  },
  {
    what: 'a page of another history does not say reset',
    only: ['LIST-02', 'LIST-13', 'LIST-15', 'LIST-17', 'LIST-18', 'LIST-19', 'EPOCH'],
    shapes: ['a'],
    fails: ['LIST-18', 'LIST-19'],
    mutation: () => ({
      answer: ({ method, path, body }) => (isPage(method, path) && body ? { body: without(body, 'reset') } : undefined),
    }),
  },
  {
    what: 'a write that is based on another history is taken',
    only: ['EPOCH-05', 'EPOCH-09'],
    shapes: ['a'],
    fails: ['EPOCH-09'],
    mutation: () => ({
      answer: ({ body }) =>
        codeOf(body) === 'epoch_mismatch' ? { status: 200, body: { id: 'x', version: 1 } } : undefined,
    }),
  },
  {
    what: 'no hint in B',
    only: ['ERR', 'SHAPE'],
    shapes: ['b'],
    // The hint is also what shows, on a refusal whose code is the same in both, in which shape it is.
    fails: ['SHAPE-26', 'ERR-02'],
    mutation: () => ({
      answer: ({ body }) => (body?.['error'] ? { body: { error: without(body['error'] as Json, 'hint') } } : undefined),
    }),
  },
  {
    what: 'caught_up without the sum of versions',
    only: ['REPLAY-01', 'REPLAY-02', 'REPLAY-03', 'REPLAY-05', 'EPOCH'],
    shapes: ['a'],
    fails: ['REPLAY-05'],
    mutation: () => ({
      frame: (frame) => [frame['type'] === 'caught_up' ? without(frame, 'versionSum') : frame],
    }),
  },
  {
    what: 'a conflict without the current version',
    only: ['RETRY', 'MOVE'],
    fails: ['RETRY-03'],
    mutation: () => ({
      answer: ({ body, status }) =>
        status === 409 && body ? { body: { error: without(body['error'] as Json, 'details') } } : undefined,
    }),
  },
  {
    what: 'a ticket that opens more than one socket',
    only: ['TOKEN'],
    shapes: ['a'],
    fails: ['TOKEN-19'],
    mutation: keepsTickets,
  },
  {
    what: 'another close code for a revoked device',
    only: ['TOKEN-11', 'TOKEN-13', 'TOKEN-14', 'TOKEN-16', 'TOKEN-21', 'WS-10', 'DEV'],
    shapes: ['a'],
    fails: ['TOKEN-14'],
    mutation: () => ({ close: (code) => (code === 4403 ? 4401 : code) }),
  },
  {
    what: 'a token wanted before the route is looked at',
    only: ['ERR', 'HTTP-03', 'HTTP-04', 'TOKEN-01'],
    shapes: ['a'],
    fails: ['ERR-10', 'HTTP-03'],
    mutation: () => ({
      answer: ({ body, token, path }) =>
        codeOf(body) === 'not_found' && token === undefined && path !== '/api/nothing'
          ? { status: 401, body: { error: { code: 'unauthorized', message: 'a token is needed' } } }
          : undefined,
    }),
  },
  {
    what: 'frames twice',
    only: ['WS-02', 'WS-03', 'WS-05', 'WS-18', 'RETRY-16'],
    shapes: ['b'],
    fails: ['WS-02', 'WS-03'],
    mutation: () => ({ frame: (frame) => (frame['type'] === 'item' ? [frame, frame] : [frame]) }),
  },
  {
    what: 'an item that says deviceless keys are missing nowhere',
    only: ['ITEM-26', 'ITEM-28', 'ERR-05'],
    fails: ['ITEM-26'],
    mutation: () => ({
      answer({ body }) {
        const error = body?.['error'] as Json | undefined;
        const details = error?.['details'] as Json | undefined;
        if (details === undefined || !('missingDevices' in details || 'missing_devices' in details)) return undefined;
        return { body: { error: { ...error, details: without(details, 'missingDevices', 'missing_devices') } } };
      },
    }),
  },
];

/** What a run of the kit against this mutant finds wrong. */
export async function failures(
  mutant: Mutant,
  { only, shapes = ['a', 'b'] }: Pick<Broken, 'only' | 'shapes'>,
): Promise<Result[]> {
  const results = await runKit({ url: mutant.url, shapes, only, adminToken: ADMIN_TOKEN });
  return results.filter(({ kind }) => kind === 'fail');
}

/** A mutant that breaks nothing yet, before a server of its own. */
export async function soundMutant(t: Test): Promise<Mutant> {
  const server = await runServer(t, { env: { LOG_LEVEL: 'error' } });
  return Mutant.before(t, server.port);
}

/** Each breaks what it says, as the kit sees it, and nothing else. */
export async function seen(t: Test, mutant: Mutant, servers: readonly Broken[]): Promise<void> {
  for (const broken of servers) {
    mutant.mutation = broken.mutation();
    const results = await failures(mutant, broken);
    t.same(
      results.map(({ id }) => id),
      broken.fails,
      broken.what,
    );
    for (const { text, source } of results)
      t.ok(/expected: .+; (came: .+; )?sent( last)?: .+/s.test(text) && text.endsWith(`(${source})`), text);
    mutant.mutation = {};
  }
}
