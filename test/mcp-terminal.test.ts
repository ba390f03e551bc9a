/** The companion at a terminal: its prompts, and what is visible of the answers. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { spawnCli } from './support/cli.js';
import { wiretap, world, type World } from './support/client-world.js';
import { PROGRAM } from './support/mcp-process.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';

t.setTimeout(600_000);

const PASSWORD = 'a long password of the test';

/** A server and its first device, which uses the real Argon2id for words and passwords. */
async function scene(t: WithTeardown): Promise<World> {
  const tap = wiretap();
  return world(t, { tap: { ...tap, platform: { ...tap.platform, sodium: nodeSodium } } });
}

t.test('MCP-20: at a terminal the words are visible and the password is not', async (t) => {
  const { url, first } = await scene(t);
  await first.device.connect();
  await first.device.setPassword(PASSWORD);
  const home = await temporaryFolder(t);
  const typed = (command: string) =>
    spawnCli(t, ['-qfec', `stty cols 200; ${process.execPath} ${PROGRAM} ${command}`, '/dev/null'], {
      home,
      env: { TERM: 'xterm' },
      through: ['script'],
    });
  const stopped = typed(`pair --host ${url}`);
  await stopped.seen(/May agents read the secrets of your passwords\? \[y\/N\] /);
  stopped.write('\r');
  await stopped.seen(/The six words that the other device shows: /);
  stopped.write('\u0003');
  t.match(await stopped.ended, { code: 130, stdout: /Error \(interrupted\)/ });

  const offer = await first.device.offerPairing(() => true);
  const pair = typed(`pair --host ${url} --name Agent > ${join(home, 'out')}`);
  await pair.seen(/\[y\/N\] /);
  pair.write('\r');
  await pair.seen(/The six words that the other device shows: /);
  pair.write(`${offer.words}\r`);
  await pair.seen(/Account password: /);
  pair.write('not that one\r');
  await pair.seen(/not the account password/);
  await pair.seen(/Account password: [^]*Account password: /);
  pair.write(`${PASSWORD}\r`);
  const ended = await pair.ended;
  t.equal(ended.code, 0, ended.stdout);
  t.ok(ended.stdout.includes(offer.words), 'the words are echoed');
  t.match(ended.stdout, /Digits: \d{3} \d{3}/);
  t.notMatch(ended.stdout, /long password|not that one/);
  t.match(
    await readFile(join(home, 'out'), 'utf8'),
    /^Paired\. This machine is "Agent"[^\n]*\nSecrets of passwords are withheld[^\n]*\n[^\n]*\n$/,
  );
});
