/** Waiting for what a device will tell. */
import type { DeviceEvents, EventName, Listener } from '../sdk/events.js';

/** Nothing in the story takes this long; a step that does has failed. */
const PATIENCE_MS = 10_000;

/** What tells events, as `Device` does. */
export interface Teller {
  on<N extends EventName>(name: N, listener: Listener<N>): () => void;
}

/**
 * The next event of a name that fits. Rejects with an error that names it when it does not come within `patienceMs` (10 s). It is
 * asked for before the step that brings it about; where that step fails, nobody waits for it any more, and its own
 * failure, which comes later, is not reported a second time.
 */
export function next<N extends EventName>(
  device: Teller,
  name: N,
  fits: (event: DeviceEvents[N]) => boolean = () => true,
  patienceMs = PATIENCE_MS,
): Promise<DeviceEvents[N]> {
  const coming = new Promise<DeviceEvents[N]>((resolve, reject) => {
    const timer = setTimeout(() => {
      stop();
      reject(new Error(`no "${name}" came within ${patienceMs / 1000} s`));
    }, patienceMs);
    const stop = device.on(name, (event) => {
      if (!fits(event)) return;
      clearTimeout(timer);
      stop();
      resolve(event);
    });
  });
  coming.catch(() => undefined);
  return coming;
}
