/** `sync`: everything that can be done now is done: sent, read, compared, keys of new devices added. */
import type { Device } from '../../../client/device.js';
import type { DeviceEvents } from '../../../client/events.js';
import { delay } from '../../../client/platform.js';
import type { Context } from '../context.js';
import { PROGRAM_NAME } from '../names.js';
import { counted, paletteOf, show } from '../output.js';
import { examples, type Register } from '../run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { noteHidden } from '../views.js';

/** How long a connection and what was missed may take. */
const CONNECT_MS = 60_000;

/** `sync`. */
export const registerSync: Register = (program, run) => {
  program
    .command('sync')
    .summary('send, read and compare with the server')
    .description(
      'Sends what waits, reads what is new, and compares with what the server counts. Gives devices that joined the keys they ' +
        'still lack. Ends with exit code 6 where items are missing.',
    )
    .option('--full', 'read everything again, not only what is new')
    .addHelpText('after', examples(`${PROGRAM_NAME} sync`, `${PROGRAM_NAME} sync --full`))
    .action(run(sync));
};

async function sync(context: Context, { full }: { readonly full?: boolean }): Promise<void> {
  const { terminal } = context;
  await context.withDevice(async (open) => {
    const { device, store, current } = open;
    if (!current) {
      const waiting = (await store.pending()).filter(({ version }) => version === null).length;
      const kept = waiting === 0 ? '' : ` ${counted(waiting, 'change')} stay here until it is back.`;
      throw new CommandError(EXIT.unavailable, `the server cannot be reached.${kept}`, undefined, { code: 'network' });
    }
    let missing: DeviceEvents['missing'] | undefined;
    device.on('missing', (event) => (missing = event));
    if (full === true) await device.resync();
    terminal.progress('Comparing with the server ...');
    await connected(context, device);
    terminal.progress('Adding keys of new devices ...');
    const rewrapped = await device.rewrap();
    terminal.progress('');
    if (missing !== undefined) throw incomplete(missing);
    const items = (await device.list()).length;
    const pending = (await store.pending()).filter(({ version }) => version === null).length;
    show(terminal, { items, pending, rewrapped, complete: true }, () => [
      `${paletteOf(terminal).good('Up to date.')} ${counted(items, 'item')}, nothing missing.` +
        (rewrapped === 0 ? '' : ` Keys added to ${counted(rewrapped, 'item')}.`) +
        (pending === 0 ? '' : ` ${counted(pending, 'change')} still waiting to be sent.`),
    ]);
    await noteHidden(terminal, open);
  });
}

/** Connects, or gives up: a proxy in between may let requests through and connections not. */
async function connected({ terminal, platform }: Context, device: Device): Promise<void> {
  const stop = new AbortController();
  const late = delay(platform.clock, CONNECT_MS, stop.signal).then(() => {
    throw new CommandError(
      EXIT.unavailable,
      'the server answers, but no live connection to it can be made, so nothing can be compared',
      `\`${PROGRAM_NAME} doctor\` finds out why.`,
      { code: 'no_stream' },
    );
  });
  try {
    await Promise.race([device.connect(), late]);
  } finally {
    late.catch(() => undefined);
    stop.abort();
    terminal.progress('');
  }
}

function incomplete({ expected, held, unlisted }: DeviceEvents['missing']): CommandError {
  const message =
    `the server counts ${counted(expected.itemCount, 'item')} and ${held.itemCount} can be had from it` +
    (unlisted.length === 0 ? '' : `; ${unlisted.length} that were here it does not list any more`);
  return new CommandError(EXIT.untrusted, message, `\`${PROGRAM_NAME} doctor\` says more.`, { code: 'incomplete' });
}
