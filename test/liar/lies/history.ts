/** Lies about a whole history, for any client behind the liar. */
import { rows, type Json, type Liar } from '../proxy.js';
import { isItem } from './items.js';

/** Where a lie about a history is played. */
type Told = { readonly liar: Liar };

export const isDelete = (frame: Json): boolean => frame['type'] === 'delete';
export const isCaughtUp = (frame: Json): boolean => frame['type'] === 'caught_up';
export const versionOf = (row: Json): number => Number(row['version']);

/** The newest true frame of an item. */
export function frameOf({ liar }: Told, id: string): Json {
  const frame = liar.frames.findLast((one) => isItem(one) && one['id'] === id);
  if (frame === undefined) throw new Error('no frame of it came');
  return frame;
}

/** Bends every `caught_up`. */
export const counts = (stage: Told, change: (truth: Json) => Json): void => {
  stage.liar.frame = (frame) => [isCaughtUp(frame) ? change(frame) : frame];
};

/** Hides items in frames and listings. */
export function hide(stage: Told, ids: readonly unknown[], change: (truth: Json) => Json = (truth) => truth): void {
  stage.liar.frame = (frame) => {
    if (isCaughtUp(frame)) return [change(frame)];
    return ids.includes(frame['id']) ? [] : [frame];
  };
  stage.liar.answer = ({ path }, truth) =>
    path.startsWith('/items?') ? rows(truth, (all) => all.filter((row) => !ids.includes(row['id']))) : undefined;
}

/** Everything that the stream brought, as the replay of another history, with one item's frame replaced. */
export function retold(stage: Told, id: string, instead: Json): readonly Json[] {
  const latest = new Map<unknown, Json>();
  for (const frame of stage.liar.frames) if (isItem(frame) || isDelete(frame)) latest.set(frame['id'], frame);
  latest.set(id, { ...instead, version: versionOf(latest.get(id) ?? {}) });
  const replay = [...latest.values()].sort((one, other) => versionOf(one) - versionOf(other));
  const live = replay.filter(isItem);
  const version = Math.max(...replay.map(versionOf));
  const versionSum = live.reduce((sum, frame) => sum + versionOf(frame), 0);
  const end = { type: 'caught_up', version, epoch: 'retold', itemCount: live.length, versionSum };
  return [{ type: 'reset', epoch: 'retold' }, ...replay, end];
}
