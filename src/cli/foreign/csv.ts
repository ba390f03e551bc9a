/** The CSV exports of Bitwarden, Chrome and Firefox (RFC 4180; with or without a byte order mark, any line ends). */
import * as foreign from './entries.js';

/** The cell of a row by its column; empty for an absent column. */
type Row = (column: string) => string;

interface Form {
  readonly program: foreign.ForeignProgram;
  readonly title: string;
  /** Columns that identify the form. */
  readonly needs: readonly string[];
  /** Further columns that are read; content of any other is not lost, but has no field. */
  readonly read: readonly string[];
  readonly draft: (row: Row) => Omit<foreign.Draft, 'where' | 'program' | 'original'>;
}

const FORMS: readonly Form[] = [
  {
    program: 'bitwarden',
    title: 'Bitwarden CSV',
    needs: ['type', 'name', 'login_uri', 'login_username', 'login_password'],
    read: ['folder', 'collections', 'favorite', 'notes', 'fields', 'reprompt', 'login_totp', 'archivedDate'],
    draft: bitwardenRow,
  },
  {
    program: 'firefox',
    title: 'Firefox CSV',
    needs: ['url', 'username', 'password', 'httpRealm', 'formActionOrigin', 'guid'],
    read: ['timeCreated', 'timeLastUsed', 'timePasswordChanged'],
    draft: firefoxRow,
  },
  {
    program: 'chrome',
    title: 'Chrome CSV',
    needs: ['name', 'url', 'username', 'password'],
    read: ['note'],
    draft: chromeRow,
  },
];

/** The entries of a CSV; undefined where its columns match no form. Throws `ForeignError`. */
export async function readCsv(text: string): Promise<foreign.ForeignEntries | undefined> {
  const [header, ...rows] = await recordsOf(text);
  const columns = (header?.cells ?? []).map((cell) => cell.trim());
  const form = FORMS.find(({ needs }) => needs.every((column) => columns.includes(column)));
  if (form === undefined) return undefined;
  if (rows.length > foreign.ENTRIES_MAX)
    throw new foreign.ForeignError('', `it has more than ${foreign.ENTRIES_MAX} rows`);
  const read = new Set([...form.needs, ...form.read]);
  // Of several columns with one name the first is read.
  const positions = new Map(columns.map((column, at) => [column, at] as const).reverse());
  const numbered = foreign.keyCounter();
  const drafts = rows.map(({ cells, line }): foreign.Draft => {
    const row: Row = (column) => cells[positions.get(column) ?? -1] ?? '';
    const { key, ...draft } = form.draft(row);
    const others = columns.filter((column) => !read.has(column) && row(column) !== '');
    return {
      ...draft,
      ...{ program: form.program, where: `line ${line}`, key: numbered(key) },
      unplaced: [...(draft.unplaced ?? []), ...others.map((column) => column.slice(0, 40))],
      original: () =>
        foreign.jsonOriginal(form.program, Object.fromEntries(columns.map((column) => [column, row(column)]))),
    };
  });
  return { program: form.program, title: form.title, entries: foreign.entriesOf(drafts) };
}

const REASONS: Readonly<{ [code: string]: string }> = {
  CSV_RECORD_INCONSISTENT_FIELDS_LENGTH: 'the row has more or fewer columns than the first line',
  CSV_QUOTE_NOT_CLOSED: 'a quotation mark is not closed, or the file is cut short',
  CSV_INVALID_CLOSING_QUOTE: 'a quotation mark is within a value',
  INVALID_OPENING_QUOTE: 'a quotation mark is within a value',
};

/** The rows, each with the line on which it begins. */
async function recordsOf(text: string) {
  const { CsvError, parse } = await import('csv-parse/sync');
  // One row more than is allowed, besides the header: the rows of a file of commas would take gigabytes.
  const to = foreign.ENTRIES_MAX + 2;
  const read = (csv: string) =>
    parse(csv, { bom: true, info: true, skip_empty_lines: true, to }) as unknown as readonly {
      readonly record: string[];
      readonly info: { readonly lines: number };
    }[];
  try {
    // `lines` is the line on which a row ends; the library counts a CR LF within a value as two.
    let twice = 0;
    return read(text).map(({ record, info }) => {
      const breaks = record.join(' ').match(/\r\n|\r|\n/g) ?? [];
      twice += breaks.filter((one) => one === '\r\n').length;
      return { cells: record, line: info.lines - twice - breaks.length };
    });
  } catch (error) {
    if (!(error instanceof CsvError)) throw error;
    // Without CR LF the library counts the lines before the fault right.
    if (text.includes('\r\n')) await recordsOf(text.replaceAll('\r\n', '\n'));
    const { lines } = error as { readonly lines?: number };
    // The library's own message would quote the row.
    throw new foreign.ForeignError(lines === undefined ? '' : `line ${lines}`, REASONS[error.code] ?? 'it is not CSV');
  }
}

const identified = (...parts: readonly string[]): string => JSON.stringify(parts);

function chromeRow(row: Row): ReturnType<Form['draft']> {
  const [name, url, user, secret] = [row('name'), row('url'), row('username'), row('password')];
  const main = foreign.loginItem({ name, url, user, secret });
  const notes = foreign.notesWith(main, url, row('note'));
  return { kind: 'password', name: name || url, folder: '', key: identified(url, user), main, notes };
}

/** ms, as Firefox writes them; undefined for anything else. */
const msOf = (cell: string): number | undefined => (/^\d{1,15}$/.test(cell) ? Number(cell) : undefined);

function firefoxRow(row: Row): ReturnType<Form['draft']> {
  const [url, user, secret, realm] = [row('url'), row('username'), row('password'), row('httpRealm')];
  const main = foreign.loginItem({ name: '', url, user, secret });
  const created = msOf(row('timeCreated'));
  return {
    ...{ kind: 'login', name: url, folder: '', main, notes: foreign.notesWith(main, url, '') },
    key: row('guid') || identified(url, user),
    created,
    changed: msOf(row('timePasswordChanged')) ?? created,
    unplaced: realm === '' ? [] : ['the realm'],
  };
}

function bitwardenRow(row: Row): ReturnType<Form['draft']> {
  const [name, user, secret, type] = [row('name'), row('login_username'), row('login_password'), row('type')];
  // Several addresses share one cell, separated by commas.
  const [url = '', ...further] = row('login_uri').split(/,(?=[a-z][\w+.-]*:\/\/)/i);
  const main = foreign.loginItem({ name, url, user, secret });
  const fields = row('fields').split(/\r\n|\r|\n/).filter((line) => line.trim() !== ''); // prettier-ignore
  return {
    kind: type === 'note' ? 'secure note' : type.slice(0, 40),
    ...{ name, folder: row('folder') || row('collections'), main, notes: foreign.notesWith(main, url, row('notes')) },
    key: identified(type, row('folder'), name, url, user),
    unplaced: [
      ...foreign.some(further.length, 'further address', 'further addresses'),
      ...(row('login_totp') === '' ? [] : ['the one-time password']),
      ...foreign.some(fields.length, 'custom field'),
    ],
    marks: [
      ...(row('favorite') === '' || row('favorite') === '0' ? [] : ['favourite']),
      ...(row('reprompt') === '' || row('reprompt') === '0' ? [] : ['ask again']),
    ],
  };
}
