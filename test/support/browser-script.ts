/**
 * Property tests of the web app's engine: what a page asks for, in any order with deaths of its tab, failures, and what
 * other devices do (support/client-script.ts). In the end everything that a page was told is kept is on the server, or in
 * a notice.
 */
import { itemId } from './changes.js';
import {
  attempt,
  binOf,
  contentOf,
  HAPPENINGS as OF_DEVICES,
  idOf,
  pick,
  played,
  type Happening,
  type Numbers,
} from './client-script.js';
import { SimulatedBrowser, TestFile } from './simulated-browser.js';
import { ClientWorld } from './simulated-device.js';

/** Items of files: each has its own. */
const FILES = 100;
const OWN = 20;

/** Items that only this browser writes, and those of all devices. */
const savedOf = (n: number): string => (n % 2 === 0 ? idOf(n >> 1) : itemId(OWN + ((n >> 1) % 3)));

const browserOf = (world: ClientWorld): SimulatedBrowser | undefined =>
  world.devices.find((device) => device instanceof SimulatedBrowser);

const { backup: _, restore: __, twin: ___, revoke: ____, ...OTHERS } = OF_DEVICES;

const HAPPENINGS = {
  ...OTHERS,
  /** At times by two tabs at once. */
  save: (world: ClientWorld, { a, b, c }: Numbers) => {
    const of = browserOf(world);
    // It is deleted, or its first write was refused: what is saved now is another one.
    if (of?.program?.shown.every(({ id }) => id !== savedOf(b)) === true) of.removals.delete(savedOf(b));
    for (let tabs = a % 3 === 0 ? 2 : 1; tabs > 0; tabs--) {
      const text = world.nextText();
      of?.texts.add(text);
      of?.call(
        `save ${text}`,
        (session) => session.put({ id: savedOf(b), binId: binOf(c), type: 'text', payload: { text } }),
        () => of.promised.add(text),
      );
    }
  },
  shift: (world: ClientWorld, { b, c }: Numbers) => {
    browserOf(world)?.call('move', (session) => session.move(savedOf(b), binOf(c)));
  },
  /** At times several files at once. */
  upload: (world: ClientWorld, { b, c }: Numbers) => {
    const of = browserOf(world);
    if (of?.session === undefined) return;
    const chosen = Array.from({ length: b % 4 === 3 ? 2 : 1 }, () => {
      const [id, name] = [itemId(FILES + of.chosen.size), world.nextText()];
      const one = { name, accepted: false, refused: false, cancelled: false };
      of.chosen.set(id, one);
      return { id, one, file: new TestFile(Uint8Array.from(contentOf(name)), name) };
    });
    of.call(
      `upload ${chosen[0]?.one.name}`,
      ({ uploads }) => uploads.add(chosen.map(({ id, file }) => ({ id, binId: binOf(c), file }))),
      () => chosen.forEach(({ one }) => (one.accepted = true)),
      () => chosen.forEach(({ one }) => (one.refused = true)),
    );
  },
  cancel: (world: ClientWorld, { b }: Numbers) => {
    const of = browserOf(world);
    const upload = pick(of?.session?.uploads.list.value ?? [], b);
    const chosen = of?.chosen.get(upload?.id ?? '');
    if (upload === undefined || chosen === undefined || upload.queued) return;
    chosen.cancelled = true;
    of?.call('cancel', ({ uploads }) =>
      uploads.cancel(upload.id).catch(() => {
        chosen.cancelled = of.records.get(`upload:${upload.id}`) === undefined;
      }),
    );
  },
  retry: (world: ClientWorld, { b }: Numbers) => {
    const uploads = browserOf(world)?.session?.uploads;
    const upload = pick(uploads?.list.value ?? [], b);
    if (upload !== undefined) uploads?.retry(upload.id);
  },
  remove: (world: ClientWorld, { b }: Numbers) => {
    const of = browserOf(world);
    const item = pick(of?.program?.shown ?? [], b);
    if (item === undefined) return;
    of?.call(
      `remove ${item.id}`,
      ({ removals }) => removals.add(item.id),
      () => of.removals.set(item.id, 'planned'),
    );
  },
  undo: (world: ClientWorld, { b }: Numbers) => {
    const of = browserOf(world);
    // Only what is shown can be undone.
    const planned = (of?.program?.shown ?? []).flatMap(({ id }) => (of?.session?.removals.at(id) === null ? [] : id));
    const id = pick(planned, b);
    if (id === undefined) return;
    of?.call(
      `undo ${id}`,
      ({ removals }) => removals.cancel(id),
      () => of.removals.set(id, 'undone'),
    );
  },
  resend: (world: ClientWorld, { b, c }: Numbers) => {
    const of = browserOf(world);
    const notice = pick(of?.session?.notices.list.value.filter(({ canResend }) => canResend) ?? [], b);
    if (notice !== undefined)
      of?.call('resend', ({ notices }) => notices.resend(notice.id, c % 2 === 0 ? 'copy' : 'overwrite'));
  },
  dismiss: (world: ClientWorld, { b }: Numbers) => {
    const of = browserOf(world);
    const notice = pick(of?.session?.notices.list.value.filter(({ canResend }) => canResend) ?? [], b);
    if (notice === undefined) return;
    of?.dismissed.add(notice.title);
    of?.call('dismiss', ({ notices }) => notices.dismiss(notice.id));
  },
  /** As where it is locked. */
  close: (world: ClientWorld) => {
    const of = browserOf(world);
    const { session, program } = of ?? {};
    attempt(async () => {
      if (of !== undefined) of.closing = true;
      await session?.close();
      if (of?.program === program) of?.kill();
    });
  },
};

export const NAMES = Object.keys(HAPPENINGS) as (keyof typeof HAPPENINGS)[];

/** Failed uploads are sent again, as by a user. */
async function retried(world: ClientWorld, { session }: SimulatedBrowser): Promise<void> {
  for (const { id, state } of session?.uploads.list.value ?? []) if (state === 'failed') session?.uploads.retry(id);
  await world.flow();
  await world.pass(70_000, true);
}

/** Plays a script of a browser and another device. Throws if something is wrong in the end. */
export async function play(seed: number, script: readonly Happening<keyof typeof HAPPENINGS>[]): Promise<ClientWorld> {
  const world = new ClientWorld(seed);
  const browser = new SimulatedBrowser(world, 1);
  await world.join(browser);
  await world.join();
  await played(world, HAPPENINGS, script, async () => {
    await retried(world, browser);
    world.findings.push(...browser.faults());
    // What it keeps is also found by the next run.
    browser.kill();
    await browser.start();
    await retried(world, browser);
    world.findings.push(...browser.faults(), ...browser.remnants().map((key) => `keeps ${key}`));
  });
  return world;
}
