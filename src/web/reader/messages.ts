/** The messages between the engine and the reader of other programs' exports. */
import type { Account } from '../../import/account.js';
import type { Entry, ForeignEntries, ForeignProgram, Made } from '../../import/entries.js';

/** What is read. `password` null: none was typed yet. */
export interface ReaderRequest {
  readonly file: File;
  readonly password: string | null;
  readonly keyFile: File | null;
}

/** An entry with the bytes of its files as blobs, which a browser can keep outside of its memory. */
export interface ReadEntry extends Omit<Entry, 'made'> {
  readonly made: readonly (Omit<Made, 'content'> & { readonly content: Blob | null })[];
}

export type ReaderAnswer =
  | {
      readonly kind: 'read';
      readonly source: Omit<ForeignEntries, 'entries'>;
      readonly entries: readonly ReadEntry[];
      readonly account: Account;
    }
  /** `wrong`: the password, or the key file, is not the right one; false: none was given. */
  | { readonly kind: 'locked'; readonly program: ForeignProgram; readonly wrong: boolean }
  /** See `ForeignError`. */
  | { readonly kind: 'refused'; readonly where: string; readonly why: string; readonly hint: string };
