/** A newer version of the app is fetched in the background, and activated when the user agrees. */
import { signal } from '@preact/signals';
import { answerStay } from '../link/stay.js';

/** Activates the new version and reloads the page; null: no newer version is known. */
export const update = signal<(() => void) | null>(null);

const reload = (): void => location.reload();

function offer(waiting: ServiceWorker): void {
  update.value = () => {
    navigator.serviceWorker.addEventListener('controllerchange', reload, { once: true });
    waiting.postMessage({ kind: 'update' });
  };
}

/** Registers the service worker. Without it, only the start without a network and streamed content are missing. */
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
  // Another tab has activated the new version, while this one still runs the old one.
  if (before !== null) navigator.serviceWorker.addEventListener('controllerchange', () => (update.value ??= reload));
}
