/** `uploads`: lists interrupted uploads, and cancels them. */
import { resolve } from 'node:path';
import type { BegunUpload } from '../../sdk/blobs/begun.js';
import { counted, relative, sanitizeText, show, table } from '../../terminal/output.js';
import { CommandError, EXIT, usageError } from '../../terminal/terminal.js';
import type { Context, DeviceCommand } from '../context.js';
import { percentOf, sizeText } from '../transfer.js';

export function registerUploads(program: DeviceCommand): void {
  const uploads = program
    .command('uploads')
    .summary('list interrupted uploads, or give them up')
    .description(
      'Lists the files whose sending was interrupted. The same `put --file` continues one, for seven days at most, and ' +
        'if nothing was sent for a day the server may have dropped it: then it starts over.',
    )
    .examples('uploads', 'uploads rm --all');
  uploads
    .command('list', { isDefault: true })
    .alias('ls')
    .summary('list them')
    .examples('uploads list --json')
    .does(list);
  uploads
    .command('rm [path...]')
    .summary('give up uploads, which frees the space of what was sent')
    .description('Gives up the uploads of these files, or all. The files themselves stay.')
    .option('--all', 'all of them')
    .examples('uploads rm holiday.mp4', 'uploads rm --all')
    .changes(rm);
}

const HINT = 'See `service-device uploads`.';

const jsonOf = ({ id, type, size, sent, source, begunAt, expiresAt }: BegunUpload) => ({
  ...{ id, type, file: source.name, size, sent, begunAt, expiresAt },
});

async function list({ terminal, platform, withDevice }: Context): Promise<void> {
  await withDevice(async ({ device }) => {
    const found = await device.uploads();
    show(terminal, { uploads: found.map(jsonOf) }, () => {
      if (found.length === 0) return ['No interrupted upload is left.'];
      const rows = found.map((one) => [
        ...[`${percentOf(one)} %`, sizeText(one.size), relative(one.begunAt, platform.clock.now())],
        sanitizeText(one.source.name),
      ]);
      return table(terminal, [{ title: 'SENT' }, { title: 'SIZE' }, { title: 'BEGUN' }, { title: 'FILE' }], rows);
    });
  }, 'local');
}

async function rm({ terminal, withDevice }: Context, paths: readonly string[], { all }: { readonly all?: boolean }) {
  if ((paths.length === 0) === (all !== true)) throw usageError('give the files, or --all', HINT);
  const wanted = new Set(paths.map((path) => resolve(path)));
  await withDevice(async ({ device }) => {
    const found = (await device.uploads()).filter(({ source }) => all === true || wanted.has(source.name));
    const missing = [...wanted].find((name) => !found.some(({ source }) => source.name === name));
    if (missing !== undefined)
      throw new CommandError(EXIT.notFound, `nothing of ${sanitizeText(missing)} was left`, HINT);
    for (const { id } of found) await device.giveUpUpload(id);
    show(terminal, { uploads: found.map(jsonOf) }, () => [`Given up: ${counted(found.length, 'upload')}`]);
  });
}
