/** The commands of a drawn script that show something, and those that write and read a whole vault. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Json } from './cli.js';
import {
  pick,
  profileOf,
  expectCode,
  expectId,
  expectContent,
  typedOf,
  rowsOf,
  line,
  linesOf,
  type Builder,
  type Step,
} from './cli-step.js';
import { markIn } from './cli-world.js';

export const list: Builder = (world, { a, b }) => {
  const profile = profileOf(world, a);
  const local = b % 4 === 0;
  const step: Step = {
    profile,
    local,
    argv: ['--json', 'list', '--limit', '1000', ...(local ? ['--local'] : [])],
    check: (result, way) => {
      expectCode(world, step, { result, way }, { clean: [0], away: [0] });
      if (result.code !== 0 || result.killed) return;
      const rows = rowsOf(result);
      const shown = rows
        .map((row) => line(String(row['id']), { mark: markIn(row), bin: String(row['binId']) }))
        .sort()
        .join('\n');
      const right = local || way.away ? way.view : way.clean ? world.items : undefined;
      if (right !== undefined && (way.clean || way.away) && shown !== linesOf(right))
        world.fault(`${profile.name} lists\n${shown}\nand not\n${linesOf(right)}`);
      if (!way.clean || local) return;
      for (const { id, version, pending } of rows)
        if (pending === true || version !== world.items.get(String(id))?.version)
          world.fault(
            `${profile.name} lists ${String(id)} with version ${String(version)}, pending: ${String(pending)}`,
          );
    },
  };
  return step;
};

/** A list for a person, with numbers. */
export const show: Builder = (world, { a, b, c }) => {
  const profile = profileOf(world, a);
  const local = b % 4 === 0;
  const how = c % 3 === 0 ? ['search', 'example'] : c % 3 === 1 ? ['list', '--limit', '4'] : ['list'];
  const step: Step = {
    profile,
    local,
    argv: [...how, ...(local ? ['--local'] : [])],
    said: (result, way) => {
      profile.numbers = undefined;
      if (result.killed || result.code !== 0 || !way.alone) return;
      if (/numbers of this list are not kept/.test(result.notes)) return void (profile.numbers = []);
      const ids = [...new Set([...world.known, ...world.attempts.flatMap(({ id }) => id ?? [])])];
      profile.numbers = result.out.split('\n').flatMap((text) => {
        const [, short] = /^\s*\d+\s+(\S+)/.exec(text) ?? [];
        if (short === undefined) return [];
        const fits = ids.filter((id) => id.endsWith(short));
        return [fits.length === 1 ? String(fits[0]) : `unknown ${short}`];
      });
    },
    check: (result, way) => expectCode(world, step, { result, way }, { clean: [0], away: [0] }),
  };
  return step;
};

export const get: Builder = (world, { a, b, c }) => {
  const profile = profileOf(world, a);
  const chosen = typedOf(world, profile, b);
  if (chosen === undefined) return undefined;
  const json = c % 2 === 0;
  const step: Step = {
    profile,
    argv: [...(json ? ['--json'] : []), 'get', chosen.typed],
    said: (result, way) => json && expectId(world, step, chosen.id, { result, way }),
    check: (result, way) => {
      if (chosen.id === undefined) return;
      const state = world.items.get(chosen.id);
      if (way.clean) expectCode(world, step, { result, way }, { clean: [state === undefined ? 3 : 0], away: [] });
      const right = way.clean ? state?.mark : way.away ? way.view?.get(chosen.id)?.mark : undefined;
      if (result.code !== 0 || right === undefined || right === '') return;
      if (json && markIn(result.data[0]) !== right)
        world.fault(`${chosen.id} shows ${markIn(result.data[0])}, not ${right}`);
      if (!json) expectContent(world, right, result);
    },
  };
  return step;
};

export const sync: Builder = (world, { a, b }) => {
  const profile = profileOf(world, a);
  const step: Step = {
    profile,
    argv: ['--json', 'sync', ...(b % 5 === 4 ? ['--full'] : [])],
    check: (result, way) => {
      expectCode(world, step, { result, way }, { clean: [0], away: [4] });
      if (!way.clean) return;
      const { items, pending } = result.data[0] ?? {};
      if (items !== world.items.size || pending !== 0)
        world.fault(
          `${profile.name} has ${String(items)} items and ${String(pending)} changes that wait; the server has ${world.items.size}`,
        );
    },
  };
  return step;
};

export const status: Builder = (world, { a }) => {
  const profile = profileOf(world, a);
  const step: Step = {
    profile,
    argv: ['--json', 'status'],
    check: (result, way) => {
      expectCode(world, step, { result, way }, { clean: [0], away: [0] });
      if (!way.clean && !way.away) return;
      const { items, pending, reachable } = result.data[0] ?? {};
      const right = way.clean ? world.items.size : way.view?.size;
      if (reachable !== way.clean || (right !== undefined && items !== right) || (way.clean && pending !== 0))
        world.fault(`${profile.name} says ${String(items)} items, ${String(pending)} wait; right is ${String(right)}`);
    },
  };
  return step;
};

/** Writes the vault into a file; another time reads it. */
export const file: Builder = (world, { a, b, c }, alone) => {
  const profile = profileOf(world, a);
  const path = pick(world.exports, b >> 1);
  if (b % 2 === 0 || path === undefined) {
    const to = join(world.folder, `export-${world.nextMark()}.json`);
    const step: Step = {
      profile,
      argv: ['--json', 'export', '--plain', to],
      check: (result, way) => {
        expectCode(world, step, { result, way }, { clean: [0], away: [0, 4] });
        if (result.code !== 0 || result.killed) return;
        world.exports.push(to);
        const { items } = JSON.parse(readFileSync(to, 'utf8')) as { items: Json[] };
        const written = new Map(
          items.map((item) => [String(item['id']), { mark: markIn(item), bin: String(item['bin']) }]),
        );
        const right = way.clean ? world.items : way.away ? way.view : undefined;
        if (right !== undefined && linesOf(written) !== linesOf(right))
          world.fault(`exported\n${linesOf(written)}\nand not\n${linesOf(right)}`);
      },
    };
    return step;
  }
  const { items } = JSON.parse(readFileSync(path, 'utf8')) as { items: Json[] };
  for (const item of items)
    for (const id of [String(item['id']), undefined])
      world.ask(
        profile.name,
        { id, kind: 'put', mark: markIn(item), bin: String(item['bin']), overwrites: true },
        alone,
      );
  const step: Step = {
    profile,
    argv: ['--json', 'import', path, ...(c % 2 === 0 ? ['--overwrite'] : [])],
    check: (result, way) => {
      expectCode(world, step, { result, way }, { clean: [0], away: [0, 4] });
      if (!way.clean) return;
      const has = new Set([...world.items.values()].map(({ mark }) => mark));
      const ids = new Set(world.items.keys());
      for (const item of items)
        if (item['blob'] !== true && !ids.has(String(item['id'])) && !has.has(markIn(item)))
          world.fault(`${markIn(item)} was imported, and is not there`);
    },
  };
  return step;
};
