/** Answers the keep-alive messages of the service worker, which a browser ends without events (worker/main.ts). */
export function answerStay(): void {
  navigator.serviceWorker.addEventListener('message', ({ data, source }: MessageEvent<{ kind?: unknown } | null>) => {
    if (data?.kind === 'stay') source?.postMessage({ kind: 'stay' });
  });
}
