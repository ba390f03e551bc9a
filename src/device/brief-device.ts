/** A device for one piece of work, beside the one that the program keeps open. */
import { Device, type DeviceOptions } from '../sdk/device.js';

/** Runs `work` as this device, and closes it. Background errors are ignored: what matters of them also fails `work`. */
export async function withBriefDevice<T>(
  options: Pick<DeviceOptions, 'platform' | 'identity' | 'store' | 'onIdentity'>,
  work: (device: Device) => Promise<T>,
): Promise<T> {
  const device = await Device.open({ ...options, onProblem: () => undefined });
  return work(device).finally(() => device.close());
}
