/** What package.json says of the package. */

export interface Manifest {
  readonly exports: Readonly<
    Record<string, string | Readonly<Record<string, string | Readonly<Record<string, string>>>>>
  >;
  readonly bin: Readonly<Record<string, string>>;
}

/** The files that others may import, from the package's folder. */
export const entriesOf = ({ exports }: Manifest): string[] =>
  Object.values(exports).flatMap((entry) =>
    typeof entry === 'string'
      ? [entry]
      : Object.values(entry).flatMap((target) => (typeof target === 'string' ? [target] : Object.values(target))),
  );
