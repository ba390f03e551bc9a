/** Why an archive is not read. */
export type ArchiveFault =
  /** Neither an archive nor a plain export. */
  | 'not_archive'
  /** A form that this version does not know. */
  | 'unsupported'
  /** Not under these twelve words, or the header is damaged: nobody can tell the two apart. */
  | 'wrong_words'
  /** A chunk does not open, or something follows the end. */
  | 'damaged'
  /** The end is missing. */
  | 'truncated'
  /** A record has a form that no export writes. */
  | 'bad_record';

/** An archive that is refused, whole. The message quotes nothing of its content. */
export class ArchiveError extends Error {
  override readonly name = 'ArchiveError';

  constructor(
    readonly code: ArchiveFault,
    message: string,
  ) {
    super(message);
  }
}
