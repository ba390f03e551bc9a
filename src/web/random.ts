/** Random values, for the page and its workers. */
import { ulid } from '../sdk/ulid.js';

export const randomBytes = (length: number): Uint8Array<ArrayBuffer> => crypto.getRandomValues(new Uint8Array(length));

/** The id of a new item. */
export const newItemId = (): string => ulid(Date.now(), randomBytes);
