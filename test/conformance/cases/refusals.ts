/** Refusals in the caller's shape: their shape, and how they name fields. */
import { randomBytes } from 'node:crypto';
import { newId, sealedFor, writeBody } from '../../support/devices.js';
import type { Ask, Json, Shape } from '../../support/wire.js';
import { CODES, otherShape, type Case } from '../stage.js';

const early: Case = {
  ids: ['SHAPE-26'],
  async run(stage, check) {
    const { wire, shape, first } = stage;
    /** Status, method, path and options: each request is refused before its body is read. */
    const asks: readonly (readonly [status: number, method: string, path: string, ask: Ask])[] = [
      [404, 'POST', '/nowhere', { token: first.token, body: {} }],
      [405, 'POST', '/me', { token: first.token, body: {} }],
      [401, 'POST', '/items', { body: {} }],
      [401, 'GET', '/items', { token: 'x' }],
      [413, 'POST', '/items', { token: first.token, body: JSON.stringify({ text: 'x'.repeat(300_000) }) }],
    ];
    const named: Readonly<Record<string, string>> = { 'x-wire-shape': shape };
    const ways: readonly (readonly [query: string, headers: Readonly<Record<string, string>>, said: Shape])[] = [
      [`shape=${shape}`, {}, shape],
      ['', named, shape],
      [`shape=${otherShape(shape)}`, named, otherShape(shape)],
      ...(shape === 'b' ? ([['bin_id=x', {}, 'b']] as const) : []),
    ];
    for (const [status, method, path, ask] of asks) {
      for (const [query, headers, said] of ways) {
        const reply = await wire.ask(method, query === '' ? path : `${path}?${query}`, { ...ask, headers });
        const hinted = reply.at('error.hint') !== undefined;
        const how = `${status} in shape ${said}: a hint is there in b only`;
        check.of('SHAPE-26', reply, reply.status === status && hinted === (said === 'b'), how);
      }
    }
  },
};

/** The path that the refusal must name, and the change of a good body that causes it. */
type Fault = readonly [path: Readonly<Record<Shape, string>>, more: Json];

const spelling: Case = {
  ids: ['SHAPE-27'],
  async run(stage, check) {
    const { wire, shape, world, first } = stage;
    const invalid = CODES.validation[shape];
    const refusal = async (body: Json, path: string, what: string): Promise<void> => {
      const reply = await wire.post('/items', body, stage.as());
      check.outcome('SHAPE-27', reply, invalid, what);
      const came = String(reply.at('error.details.path'));
      const message = String(reply.at('error.message'));
      const holds = came === path && message.includes(path);
      check.of('SHAPE-27', reply, holds, `${what}: details.path and message name ${path}`);
    };
    const body = (keys?: Readonly<Record<string, Buffer>>): Json =>
      writeBody(shape, stage.item(keys === undefined ? {} : { keys }));
    const keys = shape === 'a' ? 'payloadEnc.keys' : 'wrapped';
    await refusal(body(sealedFor(first.id)), keys, 'a device without its key');
    const stranger = newId();
    await refusal(body(sealedFor(...world.ids, stranger)), `${keys}.${stranger}`, 'a key for an unknown device');
    const faults: readonly Fault[] = [
      [{ a: 'binId', b: 'bin_id' }, { binId: '/' }],
      [{ a: 'ts', b: 'ts' }, { ts: 1 }],
      [{ a: 'blobRef', b: 'blob_ref' }, { blobNonce: randomBytes(24) }],
    ];
    for (const [path, more] of faults) await refusal({ ...body(), ...more }, path[shape], `a fault in ${path[shape]}`);
    if (shape === 'a') return;
    await refusal({ ...body(), nonce: 'AA' }, 'nonce', 'a short nonce');
    await refusal({ ...body(), wrapped: [{ deviceId: first.id }] }, 'wrapped[0].key', 'an entry without key');
    await refusal({ ...body(), wrapped: [{ key: 'AA' }] }, 'wrapped[0].device_id', 'an entry without device');
    const one = [{ deviceId: first.id, key: randomBytes(80) }];
    const blob = { ...body(), ct: '', blobRef: `${newId()}.bin` };
    await refusal({ ...blob, wrapped: one }, 'wrapped', "a blob's keys in the place of the item's");
    const own = { ...blob, blobNonce: randomBytes(24), blobKeys: one };
    await refusal(own, 'blob_keys', "a blob's keys in a place of their own");
  },
};

export const refusals: readonly Case[] = [early, spelling];
