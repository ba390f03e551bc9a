/** While the service worker gives content it asks the pages for a message now and then: see `worker/main.ts`. */

/** Answers each request of the service worker. */
export function answerStay(): void {
  navigator.serviceWorker.addEventListener('message', ({ data, source }: MessageEvent<{ kind?: unknown } | null>) => {
    if (data?.kind === 'stay') source?.postMessage({ kind: 'stay' });
  });
}
