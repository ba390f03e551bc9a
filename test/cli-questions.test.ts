/** Questions that guard something: only what is typed after them is an answer. A stand-in for a terminal, and a real one. */
import { PassThrough } from 'node:stream';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { askLine } from '../src/terminal/ask.js';
import { claimedDesk, runHere, spawnCli, typed } from './support/cli.js';
import { until } from './support/events.js';
import { temporaryFolder } from './support/postgres.js';
import { runServer } from './support/server.js';

/** A keyboard and a screen in this process. */
class Desk {
  readonly input = Object.assign(new PassThrough(), {
    isTTY: true,
    raw: false,
    setRawMode: (raw: boolean) => {
      this.input.raw = raw;
      return this.input;
    },
    ref: () => this.input,
    unref: () => this.input,
  });
  readonly errors = new PassThrough();
  readonly interruption = new AbortController();
  interrupts = 0;
  screen = '';

  constructor() {
    this.errors.setEncoding('utf8').on('data', (text: string) => (this.screen += text));
  }

  ask(question: string, hidden = false): Promise<string> {
    const asking = {
      input: this.input as unknown as NodeJS.ReadStream,
      errors: this.errors as unknown as NodeJS.WriteStream,
      interrupted: this.interruption.signal,
      interrupt: () => {
        this.interrupts++;
      },
    };
    return askLine(asking, question, hidden);
  }

  async shows(text: string): Promise<void> {
    await until(text, () => this.screen.includes(text));
  }

  type(text: string): void {
    this.input.write(text);
  }
}

t.test('CLI-37: what was typed before a question is no answer to it', async (t) => {
  const desk = new Desk();
  desk.type('y\r');
  desk.type('yes\ny\n');
  const first = desk.ask('Let it in? ');
  await desk.shows('Let it in? ');
  desk.type('no\r');
  t.equal(await first, 'no');
  t.notMatch(desk.screen, /y/, 'what was typed before is not shown');

  // The same between two questions, and with more than one line after the first answer.
  desk.type('y\r');
  const second = desk.ask('Delete? ');
  await desk.shows('Delete? ');
  desk.type('no\ry\ry\r');
  t.equal(await second, 'no');
  const third = desk.ask('Word number 3: ');
  await desk.shows('Word number 3: ');
  desk.type('apple\r');
  t.equal(await third, 'apple');
  t.equal(desk.interrupts, 0);
});

t.test('CLI-37: input that the system holds while the process is busy is no answer', async (t) => {
  const desk = new Desk();
  let answer: Promise<string> | undefined;
  setImmediate(() => {
    answer = desk.ask('Let it in? ');
    // As a terminal's input is read: after the timers of a turn that comes late.
    setImmediate(() => desk.type('y\r'));
    const stalled = performance.now() + 100;
    while (performance.now() < stalled);
  });
  await desk.shows('Let it in? ');
  desk.type('no\r');
  t.equal(await answer, 'no');
});

t.test('CLI-37: a password that is typed ahead is neither shown nor accepted', async (t) => {
  const desk = new Desk();
  const current = desk.ask('Current: ', true);
  await desk.shows('Current: ');
  desk.type('one\rhunter2\r');
  t.equal(await current, 'one');
  t.ok(desk.input.raw, 'the terminal itself shows nothing meanwhile');
  desk.type('hunter2\r');
  const next = desk.ask('New: ', true);
  await desk.shows('New: ');
  desk.type('other\r');
  t.equal(await next, 'other');
  t.notMatch(desk.screen, /hunter2|one|other/);
});

t.test('CLI-26 CLI-37: Ctrl-C between two questions interrupts', async (t) => {
  const desk = new Desk();
  const first = desk.ask('A? ');
  await desk.shows('A? ');
  desk.type('x\r');
  await first;
  const second = desk.ask('B? ');
  desk.type('y\u0003');
  await desk.shows('B? ');
  t.equal(desk.interrupts, 1);
  desk.interruption.abort();
  await t.rejects(second);
});

t.test('CLI-05 CLI-37 CLI-41: at a real terminal a yes before the digits admits no device', async (t) => {
  const { port } = await runServer(t);
  const url = `http://127.0.0.1:${port}`;
  const home = await temporaryFolder(t);
  const claimed = await runHere(home, ['claim', url, '--json', '--show-phrase', '--name', 'Desk']);
  t.equal(claimed.code, EXIT.ok, claimed.stderr);

  const pair = typed(t, home, 'pair --no-qr');
  const [, text = ''] = await pair.seen(/(http:\S+#pair=[a-z-]+)/);
  pair.write('y\ryes\ry\r');
  // The terminal itself shows what is typed while no question is asked: once it does, it has the input.
  await pair.seen(/y\s+yes\s+y\s/);
  const join = runHere(await temporaryFolder(t), ['join', text, '--json', '--name', 'Phone']);
  await pair.seen(/\[y\/N\] /);
  pair.write('n\r');
  const [paired, joined] = await Promise.all([pair.ended, join]);
  t.equal(joined.code, EXIT.refused, joined.stdout);
  t.equal(paired.code, EXIT.refused);
  t.match(paired.stdout, /It was not admitted/);
  t.notMatch(paired.stdout, /Error|Done/);
});

t.test(
  'CLI-21 CLI-37 CLI-41: at a real terminal a yes typed ahead deletes nothing, and a no is a calm line',
  async (t) => {
    const { port } = await runServer(t);
    const home = await temporaryFolder(t);
    const run = (argv: readonly string[]) => runHere(home, argv);
    await run(['claim', `http://127.0.0.1:${port}`, '--json', '--show-phrase']);
    const { id } = JSON.parse((await run(['put', 'milk', '--json'])).stdout) as { id: string };
    const rm = typed(t, home, `rm ${id}`);
    rm.write('y\ry\r');
    await rm.seen(/\[y\/N\] /);
    rm.write('\r');
    const { code, stdout } = await rm.ended;
    t.equal(code, EXIT.failure);
    t.match(stdout, /Nothing was done\./);
    t.notMatch(stdout, /Error/);
    t.match(JSON.parse((await run(['list', '--json'])).stdout), { items: [{ id }] });
  },
);

t.test('CLI-21 CLI-37: standard input that is not a terminal answers no question', async (t) => {
  const { port } = await runServer(t);
  const home = await temporaryFolder(t);
  const run = (argv: readonly string[], input = '') => runHere(home, argv, input);
  await run(['claim', `http://127.0.0.1:${port}`, '--json', '--show-phrase']);
  const { id } = JSON.parse((await run(['put', 'milk', '--json'])).stdout) as { id: string };
  await run(['bins', 'add', 'Work', '--slug', 'work']);
  for (const argv of [['rm', id], ['bins', 'rm', 'work'], ['forget'], ['pair']]) {
    const input = 'y\ny\ny\n';
    // The first runs as a process, whose standard input is the system's.
    const asked = argv[0] === 'rm' ? spawnCli(t, argv, { home, input }).ended : run(argv, input);
    const { code, stderr } = await asked;
    t.equal(code, EXIT.usage, argv.join(' '));
    t.match(stderr, /there is no terminal to confirm at/, argv.join(' '));
  }
  t.match(JSON.parse((await run(['list', '--json'])).stdout), { items: [{ id }] });
});

t.test('CLI-21 CLI-41: a no to any question is a calm line for a person, and `declined` for a script', async (t) => {
  const desk = await claimedDesk(t);
  const { id } = await desk.json(['put', 'milk']);
  await desk.json(['bins', 'add', 'Work', '--slug', 'work']);
  for (const argv of [['rm', String(id)], ['bins', 'rm', 'work'], ['revoke', 'Desk'], ['forget']]) {
    const { code, out, notes } = await desk.call(argv, { answers: [[/\[y\/N\]/, 'n']] });
    t.equal(code, EXIT.failure, argv.join(' '));
    t.match(notes, /^Nothing was done\.$/m, argv.join(' '));
    t.notMatch(notes + out, /Error/, argv.join(' '));
  }
  const script = await desk.call(['rm', String(id), '--json'], { answers: [[/\[y\/N\]/, '']] });
  t.match(script, { code: EXIT.failure, error: { code: 'declined' } });
  t.match(await desk.json(['list']), { items: [{ id }] });
});
