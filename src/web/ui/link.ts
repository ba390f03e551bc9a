/** The page's link to the engine, and the watched topics as signals. */
import { computed, type ReadonlySignal, signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { Link, LinkError } from '../link/client.js';
import { failureOf } from '../link/messages.js';
import type { CallName, Calls, Failure, ItemDetail, TopicName, Topics } from '../link/messages.js';

let current: Link | undefined;

/** The link to the engine. First used after the check of the browser's features (`unable.tsx`). */
export const link = (): Link => (current ??= new Link());

/** Calls a function of the engine. Rejects with `LinkError`. */
export const call = <N extends CallName>(name: N, ...params: Parameters<Calls[N]>): Promise<ReturnType<Calls[N]>> =>
  link().call(name, ...params);

/** An error as data. */
export const problemOf = (error: unknown): Failure => (error instanceof LinkError ? error.problem : failureOf(error));

/** What `load` gives, loaded again after each change of `inputs`. Until it is known there is no `value`; the last stays. */
export function useLoaded<T>(load: () => Promise<T>, inputs: readonly unknown[]) {
  const [loaded, setLoaded] = useState<{ readonly value?: T; readonly problem: Failure | null }>({ problem: null });
  useEffect(() => {
    let stale = false;
    load().then(
      (value) => stale || setLoaded({ value, problem: null }),
      (error: unknown) => stale || setLoaded(({ value }) => ({ value, problem: problemOf(error) })),
    );
    return () => void (stale = true);
  }, inputs);
  return loaded;
}

type PlainTopic = { [N in TopicName]: Topics[N]['params'] extends null ? N : never }[TopicName];

/** A topic as a signal: watched while it has subscribers, undefined until its first value. */
function watched<N extends PlainTopic>(topic: N): ReadonlySignal<Topics[N]['value'] | undefined> {
  let end: () => void = () => undefined;
  const value = signal<Topics[N]['value'] | undefined>(undefined, {
    watched: () => {
      end = link().watch(topic, null, (next) => (value.value = next));
    },
    unwatched: () => end(),
  });
  return value;
}

export const phase = watched('phase');
/** This device was revoked: its items can be read, and nothing can be changed. */
export const isRevoked = computed(() => phase.value?.phase === 'revoked');
/** No vault is open: nothing of one may be shown, nor anything that was typed for it. */
export const isOut = computed(() => phase.value?.phase === 'locked' || phase.value?.phase === 'empty');
export const info = watched('info');
export const bins = watched('bins');
export const devices = watched('devices');
export const uploads = watched('uploads');
export const importing = watched('importing');
export const notices = watched('notices');
export const enrolment = watched('enrolment');
export const offer = watched('offer');
export const shared = watched('shared');

/** An item, watched by one component with the item's id as its `key`. Null: there is none; undefined until that is known. */
export function useItem(id: string): ItemDetail | null | undefined {
  const [item, setItem] = useState<ItemDetail | null>();
  useEffect(() => link().watch('item', { id }, setItem), []);
  return item;
}
