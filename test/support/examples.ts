/** Servers for the examples of the reference, and the devices, items, blobs and codes that an example's variables name. */
import { createHmac, randomBytes } from 'node:crypto';
import { certifyDevice } from '../../src/crypto/device.js';
import { signRecovery } from '../../src/crypto/recovery.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { KeyPair } from '../../src/crypto/sodium.js';
import { claim, join, lp, mustWrite, newCode, newId, newItem, npkBody, waitForRequest, wrapBody } from './devices.js';
import type { TestDevice } from './devices.js';
import { BASE, billed, signUp, tenantOf, type Billed } from './hosted.js';
import type { WithTeardown } from './postgres.js';
import { ADMIN_TOKEN, runServer, type Running } from './server.js';
import { checkoutDone, signed } from './stripe.js';
import { camel, type Reply } from './wire.js';

type Variables = Readonly<Record<string, string>>;

/** An example's variables, and what must be done after it was started. */
interface Ready {
  readonly variables: Variables;
  readonly whileRunning?: () => Promise<void>;
}

/** The servers that the examples for a shell go to. */
export class ExampleStage {
  private paying: { readonly token: string; readonly event: string } | undefined;

  /** `empty`: a server that is not claimed until an example claims it. */
  private constructor(
    private readonly server: Running,
    private readonly paid: Billed,
    private readonly device: TestDevice,
    private readonly more: { readonly empty: Running; readonly recovery: KeyPair },
  ) {}

  static async open(t: WithTeardown): Promise<ExampleStage> {
    const [server, empty, paid] = await Promise.all([runServer(t), runServer(t), billed(t)]);
    const recovery = nodeSodium.signKeyPair(nodeSodium.random(32));
    const device = await claim(server.wire, { recoveryPubkey: Buffer.from(recovery.publicKey) });
    return new ExampleStage(server, paid, device, { empty, recovery });
  }

  /** curl's configuration: resolves the host names of the hosted server to this machine. */
  get curlrc(): string {
    const hosts = [BASE, `anna.${BASE}`, `dora.${BASE}`];
    return hosts.map((host) => `resolve = ${host}:${this.paid.port}:127.0.0.1\n`).join('');
  }

  /** Prepares the example of an endpoint (`METHOD /path`). */
  async ready(key: string): Promise<Ready> {
    const { variables = {}, whileRunning } = (await this.made(key)) ?? {};
    const { port } = this.paid;
    const common = {
      HOST: `http://127.0.0.1:${this.server.port}`,
      EMPTY_HOST: `http://127.0.0.1:${this.more.empty.port}`,
      APEX: `http://${BASE}:${port}`,
      TENANT_HOST: `http://dora.${BASE}:${port}`,
      DOMAIN: `anna.${BASE}`,
      TOKEN: this.device.token,
      DEVICE: this.device.id,
      ADMIN_TOKEN,
    };
    return { variables: { ...common, ...variables }, ...(whileRunning === undefined ? {} : { whileRunning }) };
  }

  private async made(key: string): Promise<Partial<Ready> | undefined> {
    const [, path = ''] = key.split(' ');
    if (path.startsWith('/api/items/:id')) return { variables: await this.item() };
    if (path === '/api/bins/:id') return { variables: { BIN: await this.bin() } };
    if (/^(\/blobs|\/api\/blobs|\/api\/uploads)\//.test(path)) return { variables: await this.blob(key) };
    if (path.startsWith('/api/devices/pair-')) return this.pairing(path);
    if (path.startsWith('/web/')) return { variables: { WEB_FILE: await this.webFile() } };
    if (path.includes('billing') || path.startsWith('/signup/')) return { variables: await this.billing() };
    switch (path) {
      case '/api/devices/:id/revoke':
        return { variables: { OTHER_DEVICE: (await join(this.server.wire, this.device)).id } };
      case '/api/devices/reauth':
        return { variables: await this.answer() };
      case '/api/devices/recover':
        return { variables: { RECOVERY: await this.recovered() } };
      case '/api/password/verify':
        await this.must('POST', '/password/set', { password: 'as stretched by the client' });
        return undefined;
      default:
        return undefined;
    }
  }

  private async must(method: string, path: string, body?: unknown): Promise<Reply> {
    const reply = await this.server.wire.ask(method, path, { token: this.device.token, shape: 'a', body });
    if (reply.status >= 300) throw new Error(`${method} ${path}: ${reply.status} ${reply.raw}`);
    return reply;
  }

  /** An item with a key for every device, without which the server refuses it. */
  private async item(): Promise<Variables> {
    const { body } = await this.must('GET', '/devices');
    const { devices } = body as { devices: { id: string; revokedAt: number | null }[] };
    const ids = devices.filter(({ revokedAt }) => revokedAt === null).map(({ id }) => id);
    const item = newItem(ids);
    return {
      ITEM: item.id,
      VERSION: String(await mustWrite(this.server.wire, this.device, item)),
      BIN: await this.bin(),
    };
  }

  private async bin(): Promise<string> {
    const id = `bin-${randomBytes(4).toString('hex')}`;
    await this.must('POST', '/bins', { id });
    return id;
  }

  private async blob(key: string): Promise<Variables> {
    const wish = { contentLength: 5, contentType: 'application/octet-stream' };
    const given = camel((await this.must('POST', '/blobs/upload-url', wish)).body) as { url: string; blobRef: string };
    if (key.startsWith('PUT')) return { UPLOAD_URL: given.url };
    const headers = { 'content-type': 'application/octet-stream' };
    const put = await fetch(given.url, { method: 'PUT', headers, body: 'hello' });
    if (!put.ok) throw new Error(`upload: ${put.status} ${await put.text()}`);
    const download = (await this.must('GET', `/blobs/${given.blobRef}/url`)).text('url');
    const begun = await this.must('POST', '/uploads', wish);
    return { BLOB: given.blobRef, DOWNLOAD_URL: download, UPLOAD: begun.text('blobRef') };
  }

  private async pairing(path: string): Promise<Partial<Ready>> {
    const code = newCode();
    const { wire } = this.server;
    const variables = { CODE: code };
    if (path.endsWith('pair-init')) return { variables };
    await this.must('POST', '/devices/pair-init', { code, epk: randomBytes(32) });
    if (path.endsWith('pair-fetch-epk')) return { variables };
    const approve = async (): Promise<void> => {
      await waitForRequest(wire, this.device);
      await this.must('POST', '/devices/pair-wrap', wrapBody(code));
    };
    if (path.endsWith('pair-fetch-npk')) return { variables, whileRunning: approve };
    const asked = wire.post('/devices/pair-fetch-npk', npkBody(code), { shape: 'a' });
    await waitForRequest(wire, this.device);
    // The example answers it, or the next pairing ends it.
    asked.catch(() => undefined);
    return { variables };
  }

  private async webFile(): Promise<string> {
    const page = await this.server.wire.get('//', { headers: { accept: 'text/html' } });
    return / src="\/web\/([^"]+)"/.exec(page.raw)?.[1] ?? '';
  }

  private async answer(): Promise<Variables> {
    const { id, keys } = this.device;
    const asked = camel((await this.must('POST', '/devices/reauth/challenge', { deviceId: id })).body);
    const challengeId = String(asked['challengeId']);
    const opened = nodeSodium.sealOpen(Buffer.from(String(asked['challenge']), 'base64'), keys) ?? new Uint8Array();
    const answer = createHmac('sha256', opened.subarray(-32))
      .update(lp('service-reauth-answer-v1', this.server.tenantId, id, challengeId))
      .digest('base64url');
    return { CHALLENGE: challengeId, ANSWER: answer };
  }

  private async recovered(): Promise<string> {
    const { challengeId, challenge, tenantId } = camel((await this.must('POST', '/devices/recover/challenge')).body);
    const { publicKey } = nodeSodium.boxKeyPair();
    const deviceId = newId();
    const deviceCert = certifyDevice(nodeSodium, nodeSodium.random(32), { id: deviceId, publicKey });
    const signature = signRecovery(nodeSodium, this.more.recovery, {
      host: '127.0.0.1',
      tenantId: String(tenantId),
      challengeId: String(challengeId),
      challenge: Buffer.from(String(challenge), 'base64'),
      deviceId,
      publicKey,
      deviceCert,
    });
    const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64url');
    const keys = { pubkey: text(publicKey), deviceCert: text(deviceCert), signature: text(signature) };
    return JSON.stringify({ challengeId, deviceId, host: '127.0.0.1', name: 'Again', glyph: 'tablet', ...keys });
  }

  /** A tenant that has paid, and the code of a checkout that is still open. */
  private async billing(): Promise<Variables> {
    if (this.paying === undefined) {
      const { device, payer } = await tenantOf(this.paid, 'dora', Date.now());
      this.paying = { token: device.token, event: JSON.stringify(checkoutDone(payer, Date.now())) };
    }
    await signUp(this.paid.apex, `emil-${randomBytes(3).toString('hex')}`);
    const calls = JSON.stringify(this.paid.stripe.checkouts.map((call) => call.form));
    const codes = [...calls.matchAll(/return=([\w-]+)/g)].map(([, code = '']) => code);
    const { token, event } = this.paying;
    return { TOKEN: token, EVENT: event, SIGNATURE: signed(event), RETURN: codes.at(-1) ?? '' };
  }
}
