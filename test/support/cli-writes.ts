/** The commands of a drawn script that change something. */
import { randomBytes } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Json } from './cli.js';
import {
  pick,
  profileOf,
  settled,
  expectSent,
  expectCode,
  expectId,
  binIn,
  idIn,
  typedOf,
  waits,
  type Builder,
  type Step,
} from './cli-step.js';
import type { CliWorld } from './cli-world.js';

/** What `put` is given: the arguments, and the content as `get` gives it back. */
function contentFor(
  world: CliWorld,
  mark: string,
  n: number,
): { argv: string[]; input?: string; bytes: Buffer; file: boolean } {
  const file = (name: string, bytes: Buffer): string => {
    const path = join(world.folder, name);
    writeFileSync(path, bytes);
    return path;
  };
  switch (n % 9) {
    case 0:
    case 1:
      return { argv: [`${mark} a text`], bytes: Buffer.from(`${mark} a text`), file: false };
    case 2:
      return {
        argv: [`https://${mark}.example.org/`],
        bytes: Buffer.from(`https://${mark}.example.org/`),
        file: false,
      };
    case 3: {
      const bytes = Buffer.from(`${mark} in a file\r\n`);
      return { argv: ['--file', file(`${mark}.txt`, bytes)], bytes, file: false };
    }
    case 4: {
      const bytes = randomBytes(300);
      bytes[0] = 0;
      return { argv: ['--file', file(`${mark}.bin`, bytes)], bytes, file: true };
    }
    case 5:
      return {
        argv: ['--type', 'password', '--set', `service=${mark} mail`, '--set', 'user=me'],
        ...{ input: `secret of ${mark}\n`, bytes: Buffer.from(`secret of ${mark}`), file: false },
      };
    case 6:
      return { argv: [], input: `${mark} piped`, bytes: Buffer.from(`${mark} piped`), file: false };
    case 7: {
      const text = `${mark} `.repeat(20_000);
      return { argv: ['--type', 'text'], input: text, bytes: Buffer.from(text), file: true };
    }
    default:
      return {
        argv: ['--type', 'contact', '--payload', JSON.stringify({ name: `${mark} person`, email: 'a@b.c' })],
        ...{ bytes: Buffer.from(`name: ${mark} person\nemail: a@b.c`), file: false },
      };
  }
}

export const put: Builder = (world, { a, b, c }, alone) => {
  const profile = profileOf(world, a);
  const mark = world.nextMark();
  const { argv, input, bytes, file } = contentFor(world, mark, c);
  const id = b % 2 === 0 ? undefined : idIn(world, b >> 1);
  const overwrites = id !== undefined && b % 3 === 0;
  const named = b % 5 === 0 || id === undefined ? binIn(world, c) : undefined;
  world.contents.set(mark, bytes);
  const bin = named ?? undefined;
  const attempt = world.ask(profile.name, { id, kind: 'put', mark, bin, overwrites }, alone);
  const step: Step = {
    profile,
    argv: [
      ...['--json', 'put', ...argv],
      ...(named === undefined ? [] : ['--bin', named]),
      ...(id === undefined ? [] : ['--id', id]),
      ...(overwrites ? ['--overwrite'] : []),
    ],
    ...(input === undefined ? {} : { options: { input } }),
    said: (result, way) => {
      settled(attempt, result);
      if (attempt.said === 'queued' && attempt.id !== undefined)
        way.view?.set(attempt.id, { mark, bin: String(result.data[0]?.['binId']) });
    },
    check: (result, way) => {
      const dead = id !== undefined && (world.gone.has(id) || waits(world, profile, id));
      const away = dead ? [0, 3, 4, 5] : file ? [4] : [0];
      expectCode(
        world,
        step,
        { result, way },
        {
          clean: dead ? [0, 3, 5] : [0],
          away: (named ?? 'inbox') === 'inbox' ? away : [0, 3, 4],
        },
      );
      expectSent(world, attempt, result);
    },
  };
  return step;
};

export const move: Builder = (world, { a, b, c }, alone) => {
  const profile = profileOf(world, a);
  const chosen = typedOf(world, profile, b);
  const bin = pick([...world.bins.keys()], c) ?? 'inbox';
  if (chosen === undefined) return undefined;
  const attempt = world.ask(profile.name, { id: chosen.id, kind: 'move', bin }, alone);
  const step: Step = {
    profile,
    argv: ['--json', 'move', chosen.typed, bin],
    said: (result, way) => {
      settled(attempt, result);
      expectId(world, step, chosen.id, { result, way });
      const shown = way.view?.get(String(attempt.id));
      if (attempt.said === 'queued' && shown !== undefined) way.view?.set(String(attempt.id), { ...shown, bin });
    },
    check: (result, way) => {
      const known = chosen.id !== undefined && world.before.has(chosen.id);
      if (chosen.id !== undefined || way.numbers !== undefined)
        expectCode(world, step, { result, way }, { clean: known ? [0, 3] : [3], away: [0, 3] });
      expectSent(world, attempt, result);
    },
  };
  return step;
};

export const rm: Builder = (world, { a, b, c }, alone) => {
  const profile = profileOf(world, a);
  const chosen = typedOf(world, profile, b);
  if (chosen === undefined) return undefined;
  const later = c % 3 === 0;
  const waiting = chosen.id !== undefined && waits(world, profile, chosen.id);
  const attempt = world.ask(profile.name, { id: chosen.id, kind: 'delete' }, alone);
  let here: boolean | undefined;
  const step: Step = {
    profile,
    local: later,
    argv: ['--json', 'rm', chosen.typed, '--yes', ...(later ? ['--later'] : [])],
    said: (result, way) => {
      here =
        later || way.away
          ? way.view?.has(String(chosen.id))
          : waiting
            ? undefined
            : world.before.has(String(chosen.id));
      expectId(world, step, chosen.id, { result, way });
      const [one] = (result.data[0]?.['deleted'] as Json[] | undefined) ?? [];
      if (result.killed || one === undefined) return settled(attempt, result);
      attempt.said = one['queued'] === true ? 'queued' : 'sent';
      attempt.id ??= String(one['id']);
      if (attempt.said !== 'queued') return;
      way.view?.delete(attempt.id);
      way.deleted?.push(attempt.id);
    },
    check: (result, way) => {
      const old = chosen.typed.length < 5 ? [2] : [];
      const codes = here === true ? [0, ...old] : [3, ...old];
      if (chosen.id !== undefined && here !== undefined)
        expectCode(
          world,
          step,
          { result, way: { ...way, clean: way.clean && !later, away: way.away || (later && way.clean) } },
          { clean: codes, away: codes },
        );
      expectSent(world, attempt, result);
    },
  };
  return step;
};

export const restore: Builder = (world, { a }) => {
  const profile = profileOf(world, a);
  const step: Step = {
    profile,
    argv: ['--json', 'restore'],
    said: (result, way) => {
      const ids = (result.data[0]?.['restored'] as string[] | undefined) ?? [];
      const wanted = way.deleted?.at(-1);
      if (result.code === 0 && way.deleted !== undefined && way.alone && !ids.includes(String(wanted)))
        world.fault(`restored ${ids.join(' ')}, not ${String(wanted)}`);
      // Where the server could not be asked, it may have the deletion.
      if (way.clean || (way.away && way.deleted !== undefined && !world.doubtful.has(profile.name)))
        for (const one of world.attempts)
          if (one.by === profile.name && one.kind === 'delete' && ids.includes(String(one.id)) && one.said === 'queued')
            one.said = 'withdrawn';
      for (const one of world.attempts)
        if (one.by === profile.name && one.kind === 'delete' && ids.includes(String(one.id)) && one.said === 'queued')
          one.said = 'unknown';
      if (way.away && wanted !== undefined) {
        way.deleted?.pop();
        way.view?.set(wanted, world.items.get(wanted) ?? { mark: '', bin: '' });
      }
    },
    check: (result, way) => {
      if (way.deleted === undefined) return;
      const waits = way.deleted.length > (way.away ? -1 : 0);
      expectCode(world, step, { result, way }, { clean: waits ? [0, 5] : [3], away: [0, 3] });
      const ids = (result.data[0]?.['restored'] as string[] | undefined) ?? [];
      for (const id of way.clean ? ids : [])
        if (!world.items.has(id)) world.fault(`${id} was restored, and is not there`);
    },
  };
  return step;
};

export const bins: Builder = (world, { a, b, c }, alone) => {
  const profile = profileOf(world, a);
  const own = [...world.bins.keys()].filter((id) => id !== 'inbox');
  const old = pick(own, b >> 2);
  if (b % 4 === 3 && old !== undefined) {
    const name = world.nextName();
    const step: Step = {
      profile,
      argv: ['--json', 'bins', 'rename', old, `Bin ${name}`],
      check: (result, way) => {
        expectCode(world, step, { result, way }, { clean: [0], away: [3, 4] });
        if (way.clean && world.bins.get(old) !== `Bin ${name}`)
          world.fault(`${old} is called ${String(world.bins.get(old))}`);
      },
    };
    return step;
  }
  if (b % 4 === 2 && old !== undefined && c % 2 === 0) {
    const mine = [...world.known].map((id) => world.ask(profile.name, { id, kind: 'delete' }, alone));
    const inBin = new Set([...world.items].filter(([, { bin }]) => bin === old).map(([id]) => id));
    const step: Step = {
      profile,
      argv: ['--json', 'bins', 'rm', old, '--yes'],
      said: () => {
        for (const one of mine)
          if (!inBin.has(String(one.id)) && !world.attempts.some(({ id, bin }) => bin === old && id === one.id))
            one.said = 'refused';
      },
      check: (result, way) => {
        expectCode(world, step, { result, way }, { clean: [0], away: [3, 4] });
        if (way.clean && result.code === 0 && world.bins.has(old)) world.fault(`${old} is there after it was removed`);
      },
    };
    return step;
  }
  if (own.length >= 3) return undefined;
  const name = world.nextName();
  const step: Step = {
    profile,
    argv: ['--json', 'bins', 'add', `Bin ${name}`, ...(c % 2 === 0 ? ['--slug', name] : [])],
    check: (result, way) => {
      expectCode(world, step, { result, way }, { clean: [0], away: [4] });
      if (result.code === 0 && !result.killed && ![...world.bins.values()].includes(`Bin ${name}`))
        world.fault(`Bin ${name} is not there`);
    },
  };
  return step;
};

/** Large enough that an interrupted transfer is continued. */
const LARGE_BYTES = 5.5 * 1024 * 1024;
const LARGE = randomBytes(LARGE_BYTES);

/** A large file, until it is written: the same command continues its transfer. */
export const send: Builder = (world, { a, b }, alone) => {
  const profile = profileOf(world, a);
  const slot = `${profile.name} ${b % 2}`;
  const mark = world.sending.get(slot) ?? world.nextMark();
  const path = join(world.folder, `${mark}.bin`);
  if (!world.sending.has(slot)) {
    const bytes = Buffer.concat([Buffer.from(`\0${mark}`), LARGE]);
    writeFileSync(path, bytes);
    world.contents.set(mark, bytes);
    world.sending.set(slot, mark);
  }
  const attempt = world.ask(profile.name, { id: undefined, kind: 'put', mark, bin: 'inbox' }, alone);
  const step: Step = {
    profile,
    argv: ['--json', 'put', '--file', path],
    said: (result) => {
      settled(attempt, result);
      if (attempt.said === 'sent' || attempt.said === 'queued') world.sending.delete(slot);
    },
    check: (result, way) => {
      expectCode(world, step, { result, way }, { clean: [0], away: [4] });
      expectSent(world, attempt, result);
    },
  };
  return step;
};

/** Interrupted transfers are listed, or given up. */
export const uploads: Builder = (world, { a, b }) => {
  const profile = profileOf(world, a);
  const lists = b % 3 > 0;
  const step: Step = {
    profile,
    local: lists,
    argv: ['--json', 'uploads', ...(lists ? [] : ['rm', '--all'])],
    check: (result, way) => {
      expectCode(world, step, { result, way }, { clean: [0], away: [0, 4] });
      for (const { file } of (result.data[0]?.['uploads'] as Json[] | undefined) ?? [])
        if (!existsSync(String(file))) world.fault(`${String(file)} is listed, which was never sent`);
    },
  };
  return step;
};
