/** A newer version of the app: it is fetched in the background, and taken when the person says so. */
import { signal } from '@preact/signals';
import { answerStay } from '../link/stay.js';

/** What takes the new version and loads the page again; null: this is the newest that is known. */
export const update = signal<(() => void) | null>(null);

const reload = (): void => location.reload();

function offer(waiting: ServiceWorker): void {
  update.value = () => {
    navigator.serviceWorker.addEventListener('controllerchange', reload, { once: true });
    waiting.postMessage({ kind: 'update' });
  };
}

/** Registers the service worker. Without one only the start without a network and streamed content are missing. */
export async function startServiceWorker(address: string): Promise<void> {
  if (!('serviceWorker' in navigator)) return;
  answerStay();
  const before = navigator.serviceWorker.controller;
  const registration = await navigator.serviceWorker.register(address);
  const look = (): void => {
    if (registration.waiting !== null && navigator.serviceWorker.controller !== null) offer(registration.waiting);
  };
  look();
  registration.addEventListener('updatefound', () => registration.installing?.addEventListener('statechange', look));
  // Another tab took it: this one runs the old version beside it.
  if (before !== null) navigator.serviceWorker.addEventListener('controllerchange', () => (update.value ??= reload));
}
