/** Runs the cases against a server, and returns the result for each rule. */
import type { Shape } from '../support/wire.js';
import { CASES } from './cases/all.js';
import { Check, type Finding } from './check.js';
import { outsideReason } from './outside.js';
import { readRules, type Rule } from './rules.js';
import { Stage, type Case } from './stage.js';
import { World, type WorldOptions } from './world.js';

export interface KitOptions extends WorldOptions {
  /** Ids of rules ('ITEM-03') and prefixes ('RETRY'); all where left out. */
  readonly only?: readonly string[];
  /** Includes the cases that wait for minutes. */
  readonly slow?: boolean;
  /** Runs the cases in reverse order; the results must not depend on it. */
  readonly reversed?: boolean;
  readonly onCase?: (ids: readonly string[], shape: Shape, ms: number) => void;
}

/** The result for one rule. `outside`: no client can observe it. */
export interface Result extends Rule {
  readonly kind: Finding['kind'] | 'outside';
  readonly text: string;
}

const wanted = (id: string, only: readonly string[] | undefined): boolean =>
  only === undefined || only.some((one) => one === id || id.startsWith(`${one}-`));

/** Why a case cannot run here; undefined where it can. */
function unmet({ needs }: Case, options: KitOptions): string | undefined {
  if (needs === 'slow' && options.slow !== true) return 'takes minutes: give --slow';
  if (needs === 'admin' && options.adminToken === undefined) return 'needs --admin-token';
  if (needs === 'cors' && options.corsOrigin === undefined) return 'needs --cors-origin';
  return undefined;
}

async function play(world: World, one: Case, shape: Shape): Promise<Check> {
  const check = new Check(one.ids, shape, one.once !== true, () => world.wire.last);
  const stage = new Stage(world, shape);
  try {
    await stage.begin();
    await one.run(stage, check);
  } catch (error) {
    check.ended(error);
  }
  await stage.end().catch((error: unknown) => check.ended(error));
  return check;
}

/** Of several findings for one rule the worst counts: a failure, then a pass. */
function merged(one: Finding | undefined, other: Finding): Finding {
  if (one === undefined || one.kind === 'skip') return other;
  if (one.kind === 'fail' || other.kind !== 'fail') return one;
  return other;
}

/** Runs the cases of the rules that `only` selects; returns each selected rule's result, in the order of RULES.md. */
export async function runKit(options: KitOptions): Promise<Result[]> {
  const found = new Map<string, Finding>();
  const note = (id: string, finding: Finding): void => void found.set(id, merged(found.get(id), finding));
  const asked = CASES.filter((one) => one.ids.some((id) => wanted(id, options.only)));
  const cases = options.reversed === true ? asked.toReversed() : asked;
  const world = await World.start(options);
  try {
    for (const one of cases) {
      const reason = unmet(one, options);
      if (reason !== undefined) for (const id of one.ids) note(id, { kind: 'skip', text: reason });
      else {
        for (const shape of one.once === true ? [world.shape] : options.shapes) {
          const began = Date.now();
          for (const [id, finding] of (await play(world, one, shape)).result()) note(id, finding);
          options.onCase?.(one.ids, shape, Date.now() - began);
        }
      }
    }
  } finally {
    await world.end();
  }
  return readRules()
    .filter(({ id }) => wanted(id, options.only))
    .map((rule) => resultOf(rule, found.get(rule.id)));
}

function resultOf(rule: Rule, finding: Finding | undefined): Result {
  if (finding === undefined) return { ...rule, kind: 'outside', text: outsideReason(rule) ?? 'nobody looked' };
  const text = finding.kind === 'fail' ? `${finding.text} (${rule.source})` : finding.text;
  return { ...rule, kind: finding.kind, text };
}
