/** Parts of the app whose code is loaded after the first view. */
import { signal } from '@preact/signals';
import type { ComponentType, JSX } from 'preact';
import { useEffect } from 'preact/hooks';
import { Button, Notice } from './kit.js';
import { text } from './strings.js';

/** A component that is loaded when it is first rendered, or by `ahead`, whichever comes first. */
export function later<P extends object>(
  load: () => Promise<ComponentType<P>>,
): ((props: P) => JSX.Element | null) & { readonly ahead: () => void } {
  const loaded = signal<ComponentType<P> | null>(null);
  const failed = signal(false);
  let asked = false;
  const ahead = (): void => {
    if (asked) return;
    asked = true;
    failed.value = false;
    load().then(
      (component) => (loaded.value = component),
      () => {
        asked = false;
        failed.value = true;
      },
    );
  };
  const Later = (props: P) => {
    useEffect(ahead, []);
    const Loaded = loaded.value;
    if (Loaded !== null) return <Loaded {...props} />;
    if (!failed.value) return <div class="page" aria-busy="true" />;
    return (
      <div class="page">
        <Notice kind="warn" live actions={<Button onClick={ahead} label={text.kit.tryAgain} />}>
          {text.unable.part}
        </Notice>
      </div>
    );
  };
  return Object.assign(Later, { ahead });
}
