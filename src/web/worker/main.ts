/** Stub. */
declare const __SHELL__: readonly string[];
declare const __VERSION__: string;
void caches.open(__VERSION__).then((cache) => cache.addAll(__SHELL__));
