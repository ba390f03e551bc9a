/** While the service worker streams content, it requests messages from the pages: see `worker/main.ts`. */

/** Answers each request of the service worker. */
export function answerStay(): void {
  navigator.serviceWorker.addEventListener('message', ({ data, source }: MessageEvent<{ kind?: unknown } | null>) => {
    if (data?.kind === 'stay') source?.postMessage({ kind: 'stay' });
  });
}
