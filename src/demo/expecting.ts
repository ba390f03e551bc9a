/** Waits for events of a device. */
import type { Device } from '../sdk/device.js';
import type { DeviceEvents, EventName } from '../sdk/events.js';

/** Longer than any step takes. */
const TIMEOUT_MS = 10_000;

/**
 * The next matching event `name`; rejects after `timeoutMs` with an error that names it. Call it before the action that
 * causes the event. If that action fails, the rejection may stay unobserved; it is not reported as unhandled.
 */
export function next<N extends EventName>(
  device: Pick<Device, 'on'>,
  name: N,
  fits: (event: DeviceEvents[N]) => boolean = () => true,
  timeoutMs = TIMEOUT_MS,
): Promise<DeviceEvents[N]> {
  const coming = new Promise<DeviceEvents[N]>((resolve, reject) => {
    const timer = setTimeout(() => {
      stop();
      reject(new Error(`no "${name}" came within ${timeoutMs / 1000} s`));
    }, timeoutMs);
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
