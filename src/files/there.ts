/** Files that may not be there. */
import { errorCode } from '../protocol/error-code.js';

/** What the work comes to; undefined where the file that it is about is not there. */
export async function ifThere<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/** The same, at once. */
export function ifThereSync<T>(work: () => T): T | undefined {
  try {
    return work();
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
}
