/** A device of the command line on a real server, with a profile and a folder for files. */
import type { Context } from '../../src/cli/context.js';
import { MemoryStore, type Store } from '../../src/sdk/store/store.js';
import { note, world, type Client, type Wiretap, type World } from './client-world.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import type { RunOptions } from './server.js';
import { contextOf, secretsIn, type FakeTerminal } from './vault-context.js';

/** The device, and what a command is given to work with it. */
export interface Place {
  readonly world: World;
  readonly folder: string;
  /** The first device, opened with `store`. */
  readonly client: Client;
  readonly store: Store;
  readonly context: (terminal: FakeTerminal) => Context;
}

/** The context of a client whose store is known. */
export async function contextFor(
  { client, store, folder }: Pick<Place, 'client' | 'store' | 'folder'>,
  terminal: FakeTerminal,
): Promise<Context> {
  const secrets = secretsIn(folder);
  await secrets.keep(client.identity());
  const { device, tap } = client;
  return contextOf({ terminal, platform: tap.platform, secrets, folder, device, store });
}

/** A claimed server and its first device. */
export async function place(t: WithTeardown, options: RunOptions & { readonly tap?: Wiretap } = {}): Promise<Place> {
  const made = await world(t, options);
  const folder = await temporaryFolder(t);
  const secrets = secretsIn(folder);
  const store = new MemoryStore();
  made.first.device.close();
  const client = await made.open(made.first.identity(), { tap: made.first.tap, store });
  await secrets.keep(client.identity());
  const { device, tap } = client;
  const context: Place['context'] = (terminal) =>
    contextOf({ terminal, platform: tap.platform, secrets, folder, device, store });
  return { world: made, folder, client, store, context };
}

/** The same with a named bin, a note in the inbox and a link in that bin. */
export async function filled(t: WithTeardown): Promise<Place & { readonly ids: readonly [string, string] }> {
  const at = await place(t);
  const { device } = at.client;
  await device.bins.create('garden', { name: 'The garden', emoji: '🌱' });
  const one = await device.put(note('the spare key is under the pot'));
  const payload = { url: 'https://example.org', title: 'Beans' };
  const two = await device.put({ binId: 'garden', type: 'link', payload });
  return { ...at, ids: [one.id, two.id] };
}
