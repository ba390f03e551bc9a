/** An agent's companion as another device of the vault of a drawn script. */
import { FAULTS, Line } from './cli-line.js';
import { pick, type Numbers } from './cli-step.js';
import { markIn, type CliWorld } from './cli-world.js';
import { companion, type Companion, type Listing, type Refusal } from './mcp.js';
import type { WithTeardown } from './postgres.js';

const NAME = 'Agent';
/** Refusals after which nothing was changed, as the agent is told. */
const UNCHANGED = ['unreachable', 'server_trouble', 'rate_limited', 'item_not_found', 'bin_not_found', 'bin_ambiguous'];
/** Faults that are the user's. */
const OF_USERS = /interrupt|kill/;

export class Agent {
  private constructor(
    private readonly world: CliWorld,
    private readonly line: Line,
    private readonly companion: Companion,
  ) {}

  static async pair(t: WithTeardown, world: CliWorld): Promise<Agent> {
    const [first] = world.lines;
    const line = new Line(NAME, first?.accepted ?? []);
    for (const one of [line, first]) if (one !== undefined) one.hurried = true;
    const paired = await world.made.pair(NAME, line.tap);
    paired.device.close();
    for (const one of [line, first]) one?.mend();
    world.lines.push(line);
    return new Agent(world, line, await companion(t, { identity: paired.identity(), platform: line.tap.platform }));
  }

  /** Everything works again: what waits is sent. */
  async settle(): Promise<void> {
    this.line.mend();
    await this.call('sb_list_items', { limit: 200 });
    await this.world.observe();
  }

  /** A call of a tool, with a fault or without. */
  async act({ a, b, c }: Numbers): Promise<void> {
    const { world, line } = this;
    const fault = pick(
      FAULTS.filter((one) => !OF_USERS.test(one)),
      a,
    );
    const clean = c % 2 === 0 || fault === undefined;
    if (!clean) line.expect(fault, a % 7);
    if (b % 3 === 0) await this.put();
    else if (b % 3 === 1) await this.remove(pick([...world.known], b >> 2));
    else await this.list(clean);
    line.mend();
  }

  private async call(name: string, args: object): Promise<{ readonly given?: unknown; readonly refusal?: Refusal }> {
    const result = await this.companion.raw(name, args);
    const refusal = result._meta?.['service-mcp/error'] as Refusal | undefined;
    this.world.story.push(`${NAME}: ${name} ${JSON.stringify(args)} -> ${JSON.stringify(refusal?.code ?? 'done')}`);
    if (result.isError === true && refusal === undefined) this.world.fault(`${name}: a refusal without a code`);
    if (refusal?.code === 'internal') this.world.fault(`${name}: ${refusal.message}`);
    return refusal === undefined ? { given: result.structuredContent } : { refusal };
  }

  private async put(): Promise<void> {
    const { world } = this;
    const mark = world.nextMark();
    const text = `${mark} of an agent`;
    world.contents.set(mark, Buffer.from(text));
    const attempt = world.ask(NAME, { id: undefined, kind: 'put', mark, bin: 'inbox' }, true);
    const { given, refusal } = await this.call('sb_put_item', { bin: 'inbox', payload: { text } });
    if (refusal !== undefined && UNCHANGED.includes(refusal.code)) attempt.said = 'refused';
    const stored = given as { readonly id: string } | undefined;
    attempt.id = stored?.id;
    await world.observe();
    if (stored !== undefined && world.items.get(stored.id)?.mark !== mark)
      world.fault(`${mark} was stored, and is not there`);
  }

  private async remove(id: string | undefined): Promise<void> {
    const { world } = this;
    if (id === undefined) return;
    const attempt = world.ask(NAME, { id, kind: 'delete' }, true);
    const { given, refusal } = await this.call('sb_delete_item', { id });
    if (refusal !== undefined && UNCHANGED.includes(refusal.code)) attempt.said = 'refused';
    await world.observe();
    if (given !== undefined && world.items.has(id)) world.fault(`${id} was deleted, and is there`);
  }

  private async list(clean: boolean): Promise<void> {
    const { world } = this;
    const { given, refusal } = await this.call('sb_list_items', { limit: 200 });
    await world.observe();
    if (refusal !== undefined) {
      if (clean) world.fault(`${NAME} cannot list: ${refusal.code}: ${refusal.message}`);
      return;
    }
    const { items, total, complete } = given as Listing;
    const shown = items.map((item) => `${item.id} ${markIn(item.payload)} ${String(item.bin)}`).sort();
    const right = [...world.items].map(([id, { mark, bin }]) => `${id} ${mark} ${bin}`).sort();
    // A change of its own may wait.
    if (clean && this.companion.vault.takeNews().length === 0 && shown.join('\n') !== right.join('\n'))
      world.fault(`${NAME} lists\n${shown.join('\n')}\nand not\n${right.join('\n')}`);
    if (complete === false) world.fault(`${NAME}: something is missing, ${total} are there`);
  }
}
