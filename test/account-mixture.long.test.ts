/**
 * Any mixture of what devices do with the account, at two instances at once: pairings, recoveries, revocations, names,
 * passwords, tickets. A device is in exactly where a reply said so, and whoever was let in stays until it is revoked.
 */
import { randomBytes, randomInt } from 'node:crypto';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { KeyPair } from '../src/crypto/sodium.js';
import { answerReauthChallenge } from '../src/crypto/reauth.js';
import { signRecovery } from '../src/crypto/recovery.js';
import { ShiftedClock } from './support/clock.js';
import { claim, newCode, newId, newItem, npkBody, write, wrapBody, type TestDevice } from './support/devices.js';
import { soon, until, untilIs } from './support/events.js';
import { inLongRun } from './support/long.js';
import { oneOf } from './support/one-of.js';
import { runServer, type Running } from './support/server.js';
import { UpgradeRefused, type Ask, type Json, type Reply, type Socket, type Wire } from './support/wire.js';

const ROUNDS = inLongRun(12, 120);
const AT_ONCE = 10;
const MAX_DEVICES = 8;
const HOST = '127.0.0.1';
/** A held call returns after 25 s; a new device whose pairing has ended must not wait for that. */
const ANSWERED_WITHIN_MS = 20_000;

/** Refusals of one call that was overtaken by another. */
const ALLOWED = [
  '401 unauthorized',
  '403 device_revoked',
  '403 forbidden',
  '403 password_invalid',
  '403 password_required',
  '400 pair_expired',
  '400 pair_invalid',
  '404 device_not_found',
  '409 conflict',
  '409 device_limit',
  '409 last_device',
];

/** A device, as its replies described it. */
interface Member {
  readonly device: TestDevice;
  /** The last one that it was given. */
  token: string;
  revoked: boolean;
  socket: Socket | undefined;
  /** Names that were accepted, and its first one. */
  readonly names: Set<string>;
}

class Mixture {
  readonly members = new Map<string, Member>();
  readonly wrong: string[] = [];
  /** What was refused, although nothing but a revocation of that device could explain it. */
  private refused: { readonly member: Member; readonly what: string }[] = [];
  /** The password as of the last accepted change. */
  password: string | null = null;

  constructor(
    private readonly servers: readonly Running[],
    private readonly recovery: KeyPair,
  ) {}

  get live(): readonly Member[] {
    return [...this.members.values()].filter(({ revoked }) => !revoked);
  }

  get wires(): readonly Wire[] {
    return this.servers.map(({ wire }) => wire);
  }

  private get wire(): Wire {
    return oneOf(this.wires) as Wire;
  }

  private get tenantId(): string {
    return String(this.servers[0]?.tenantId);
  }

  private get member(): Member {
    return oneOf(this.live) as Member;
  }

  admit(device: TestDevice): void {
    if (this.members.has(device.id)) this.wrong.push(`${device.id} was let in twice`);
    this.members.set(device.id, {
      ...{ device, token: device.token, revoked: false, socket: undefined, names: new Set([device.name]) },
    });
  }

  private readonly calls: readonly (() => Promise<string>)[] = [
    () => this.pair(),
    () => this.pair(),
    () => this.pair(),
    () => this.recover(),
    () => this.revoke(),
    () => this.revoke(),
    () => this.rename(),
    () => this.changePassword(),
    () => this.redeem(),
    () => this.renew(),
    () => this.put(),
  ];

  private async pair(): Promise<string> {
    const existing = this.member;
    const mine: Ask = { token: existing.token, shape: 'a' };
    const code = newCode();
    const opened = await this.wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, mine);
    if (opened.status !== 200) return opened.outcome;
    const keys = nodeSodium.boxKeyPair();
    const body = npkBody(code, {
      pubkey: Buffer.from(keys.publicKey),
      name: `joined ${newId()}`,
      ...(await this.proof(keys)),
    });
    let ended = false;
    const joining = this.joined(body).finally(() => (ended = true));
    let answer = 'no answer yet';
    const answering = this.answered(code, mine, { body, ended: () => ended }).then((one) => (answer = one));
    const reply = await soon(joining, () => `an end of the pairing: ${answer}`, ANSWERED_WITHIN_MS);
    await answering;
    if (answer === '200' && reply.status !== 200) this.wrong.push(`approved, and got ${reply.outcome}`);
    if (answer !== '200' && reply.status === 200) this.wrong.push(`let in by ${answer}`);
    if (reply.status === 200)
      this.admit({ id: reply.text('device.id'), token: reply.text('token'), keys, name: String(body['name']) });
    return reply.outcome;
  }

  /** What the new device gets in the end, asking again at any instance. */
  private async joined(body: Json): Promise<Reply> {
    const again = randomInt(3) === 0 ? this.wire.post('/devices/pair-fetch-npk', body, { shape: 'a' }) : undefined;
    let reply = await this.wire.post('/devices/pair-fetch-npk', body, { shape: 'a' });
    await again;
    for (let times = 0; reply.status === 202; times++) {
      if (times > 3) throw new Error('the new device waits for a pairing that has ended');
      reply = await this.wire.post('/devices/pair-fetch-npk', body, { shape: 'a' });
    }
    return reply;
  }

  /** What the existing device, or the user of the new one, does about the request; `200`: it was approved. */
  private async answered(
    code: string,
    mine: Ask,
    { body, ended }: { body: Json; ended: () => boolean },
  ): Promise<string> {
    let last = '';
    await until('the request', async () => {
      if (ended()) return true;
      const listed = await this.wire.get('/devices/pair-requests', mine);
      last = listed.outcome;
      return listed.status !== 200 || listed.list('requests').some((request) => request['code'] === code);
    });
    if (ended()) return 'none';
    const post = (answer: Json): Promise<Reply> => this.wire.post('/devices/pair-wrap', answer, mine);
    switch (randomInt(6)) {
      case 0:
        await post({ code, reject: true });
        return 'rejected';
      case 1:
        await this.wire.post('/devices/pair-fetch-npk', { ...body, withdraw: true }, { shape: 'a' });
        return 'withdrawn';
      case 2: {
        const replies = await Promise.all([post(wrapBody(code)), post({ code, reject: true })]);
        return replies[0]?.outcome ?? '';
      }
      default: {
        const wrap = wrapBody(code);
        const replies = await Promise.all([post(wrap), post(wrap)]);
        const accepted = replies.find(({ status }) => status === 200);
        // A password was set meanwhile: the new device would have to prove it, and is held until it asks again.
        if (accepted === undefined) await post({ code, reject: true });
        return accepted?.outcome ?? `${last}, ${replies[0]?.outcome}`;
      }
    }
  }

  /** A ticket for the password where one is set. */
  private async proof(keys: KeyPair): Promise<Json> {
    if (this.password === null) return {};
    const body = { password: this.password, pubkey: Buffer.from(keys.publicKey) };
    const reply = await this.wire.post('/password/verify', body, { shape: 'a' });
    return reply.status === 200 ? { passwordTicket: reply.text('ticket') } : {};
  }

  private async recover(): Promise<string> {
    const keys = nodeSodium.boxKeyPair();
    const challenged = await this.wire.post('/devices/recover/challenge', {}, { shape: 'a' });
    const ids = { host: HOST, challengeId: challenged.text('challengeId'), deviceId: newId() };
    const deviceCert = randomBytes(32);
    const challenge = Buffer.from(challenged.text('challenge'), 'base64url');
    const claimed = { ...ids, tenantId: this.tenantId, challenge, publicKey: keys.publicKey, deviceCert };
    const signature = Buffer.from(signRecovery(nodeSodium, this.recovery, claimed));
    const name = `back ${ids.deviceId}`;
    const body = { ...ids, name, glyph: 'laptop', pubkey: Buffer.from(keys.publicKey), deviceCert, signature };
    const proven = { ...body, ...(await this.proof(keys)) };
    // Twice at once: a challenge is good for one answer.
    const replies = await Promise.all(this.wires.map((wire) => wire.post('/devices/recover', proven, { shape: 'a' })));
    const accepted = replies.filter(({ status }) => status === 200);
    for (const reply of accepted) this.admit({ id: ids.deviceId, token: reply.text('token'), keys, name });
    return (accepted[0] ?? replies[0])?.outcome ?? '';
  }

  private async revoke(): Promise<string> {
    const [by, target] = [this.member, this.member];
    if (this.live.length < 3 && randomInt(3) > 0) return '200';
    const reply = await this.wire.post(`/devices/${target.device.id}/revoke`, {}, { token: by.token, shape: 'a' });
    if (reply.status === 200) target.revoked = true;
    return reply.outcome;
  }

  private async rename(): Promise<string> {
    const [by, target] = [this.member, this.member];
    const name = `renamed ${newId()}`;
    const reply = await this.wire.patch(`/devices/${target.device.id}`, { name }, { token: by.token, shape: 'a' });
    if (reply.status === 200) target.names.add(name);
    return reply.outcome;
  }

  private async changePassword(): Promise<string> {
    const by: Ask = { token: this.member.token, shape: 'a' };
    const before = this.password;
    const current = before === null ? {} : { currentPassword: before };
    const next = before !== null && randomInt(2) === 0 ? null : `password ${newId()}`;
    const reply =
      next === null
        ? await this.wire.delete('/password', { ...by, body: current })
        : await this.wire.post('/password/set', { password: next, ...current }, by);
    if (reply.status !== 200) return reply.outcome;
    if (this.password !== before) this.wrong.push('two changes of one password were accepted');
    this.password = next;
    return '200';
  }

  /** A ticket at both instances at once. */
  private async redeem(): Promise<string> {
    const member = this.member;
    const issued = await this.wire.post('/ws-ticket', {}, { token: member.token, shape: 'a' });
    if (issued.status !== 200) return issued.outcome;
    const ticket = issued.text('ticket');
    const opened = await Promise.all(
      this.wires.map((wire) =>
        wire.connect({ ticket }).catch((error: unknown) => {
          if (error instanceof UpgradeRefused) return error.reply.outcome;
          throw error;
        }),
      ),
    );
    const sockets = opened.filter((one) => typeof one !== 'string');
    for (const socket of sockets) socket.terminate();
    if (sockets.length === 2) this.wrong.push('a ticket opened two sockets');
    if (sockets.length === 0)
      this.refused.push({ member, what: `a ticket opened no socket: ${opened.map(String).join()}` });
    return '200';
  }

  private async renew(): Promise<string> {
    const member = this.member;
    const { id: deviceId, keys } = member.device;
    const challenged = await this.wire.post('/devices/reauth/challenge', { deviceId }, { shape: 'a' });
    if (challenged.status !== 200) return challenged.outcome;
    const challengeId = challenged.text('challengeId');
    const challenge = Buffer.from(challenged.text('challenge'), 'base64url');
    const answer = Buffer.from(
      answerReauthChallenge(nodeSodium, { tenantId: this.tenantId, deviceId, challengeId }, { challenge, keys }),
    );
    const replies = await Promise.all(
      this.wires.map((wire) => wire.post('/devices/reauth', { deviceId, challengeId, answer }, { shape: 'a' })),
    );
    const accepted = replies.filter(({ status }) => status === 200);
    if (accepted.length === 2) this.wrong.push('a challenge was answered twice');
    const [reply] = accepted;
    if (reply === undefined)
      this.refused.push({ member, what: `no token: ${replies.map(({ outcome }) => outcome).join()}` });
    if (reply !== undefined) member.token = reply.text('token');
    return (reply ?? replies[0])?.outcome ?? '';
  }

  private async put(): Promise<string> {
    const reply = await write(this.wire, this.member, newItem(this.live.map(({ device }) => device.id)));
    // Another device joined or was revoked meanwhile.
    return reply.status === 400 ? '200' : reply.outcome;
  }

  /** Calls at once; then everyone who is in, and nobody else, is served by both instances. */
  async round(): Promise<void> {
    const outcomes = await Promise.all(Array.from({ length: AT_ONCE }, async () => oneOf(this.calls)?.()));
    this.wrong.push(...outcomes.filter((one) => one !== '200' && !ALLOWED.includes(String(one))).map(String));
    for (const { member, what } of this.refused.splice(0)) if (!member.revoked) this.wrong.push(what);
    const ids = this.live.map(({ device }) => device.id).sort();
    if (ids.length === 0 || ids.length > MAX_DEVICES) this.wrong.push(`${ids.length} devices`);
    for (const wire of this.wires) {
      const listed = (await wire.get('/devices', { token: this.member.token, shape: 'a' })).list('devices');
      const shown = listed.filter(({ revokedAt }) => revokedAt === null);
      if (
        shown
          .map(({ id }) => String(id))
          .sort()
          .join() !== ids.join()
      )
        this.wrong.push('other devices are listed');
      for (const { id, name } of listed)
        if (this.members.get(String(id))?.names.has(String(name)) !== true)
          this.wrong.push(`${String(name)} is listed`);
      for (const { device, revoked, token } of this.members.values()) {
        const me = async (): Promise<string> => (await wire.get('/me', { token, shape: 'a' })).outcome;
        // The other instance hears of a revocation within seconds.
        if (revoked) await untilIs(me, '403 device_revoked');
        else if ((await me()) !== '200') this.wrong.push(`${device.name} is not served`);
      }
      const { outcome } = await write(wire, this.member, newItem(ids));
      if (outcome !== '200') this.wrong.push(`a write for all devices: ${outcome}`);
      if ((await wire.get('/password/exists')).at('exists') !== (this.password !== null))
        this.wrong.push(`not the password ${String(this.password)}`);
    }
    await this.sockets();
  }

  /** The sockets of revoked devices close; those of the others stay, and hear of everyone who is in. */
  private async sockets(): Promise<void> {
    for (const member of this.members.values()) {
      if (member.revoked) {
        const end = await (member.socket && soon(member.socket.closed, `the close of ${member.device.name}`));
        if (end !== undefined && end.code !== 4403)
          this.wrong.push(`${member.device.name} was closed with ${end.code}`);
        member.socket = undefined;
        continue;
      }
      const heard = member.socket?.of('device_revoked').map(({ id }) => String(id)) ?? [];
      if (heard.some((id) => this.members.get(id)?.revoked !== true)) this.wrong.push('a revocation that was none');
      if (member.socket === undefined || randomInt(8) === 0) {
        member.socket?.terminate();
        member.socket = await this.wire.connect({ token: member.token });
        await member.socket.hello();
      }
    }
  }
}

t.test('DEV-01: any mixture of calls of an account, at two instances', async (t) => {
  const clock = new ShiftedClock();
  const env = { MAX_DEVICES: String(MAX_DEVICES), TOKEN_TTL_DAYS: '300' };
  const first = await runServer(t, { clock, env });
  const second = await runServer(t, { clock, env, database: { url: first.databaseUrl } });
  const recovery = nodeSodium.signKeyPair(randomBytes(32));
  const mixture = new Mixture([first, second], recovery);
  mixture.admit(await claim(first.wire, { recoveryPubkey: Buffer.from(recovery.publicKey) }));
  for (let round = 0; round < ROUNDS; round++) {
    await mixture.round();
    t.strictSame(mixture.wrong.splice(0), [], `round ${round}`);
    // So many devices may join in a day.
    if (randomInt(3) === 0) clock.advance(86_400_000);
  }
  t.comment(`${mixture.members.size} devices`);
  t.ok(mixture.members.size > ROUNDS / 2);
});
