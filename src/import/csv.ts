/** The CSV exports of Bitwarden, Chrome and Firefox (RFC 4180; with or without a byte order mark, any line ends). */
import { rowsOf } from './csv-rows.js';
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

/** Most columns: their names are in memory, and in each row that has content in all of them. */
const COLUMNS_MAX = 200_000;

/** The entries of a CSV; undefined where its columns match no form. Throws `ForeignError`. */
export function readCsv(text: string): foreign.ForeignEntries | undefined {
  const rows = rowsOf(text, COLUMNS_MAX);
  const header = rows.next();
  const columns = namesOf(header.done === true ? [] : header.value.cells);
  const form = FORMS.find(({ needs }) => needs.every((column) => columns.includes(column)));
  if (form === undefined) return undefined;
  const { program, title } = form;
  return { program, title, entries: foreign.entriesOf(draftsOf(form, columns, rows)) };
}

/** The names of the columns. A name that is there again gets a number: what is in that column must not be lost. */
function namesOf(cells: readonly string[]): readonly string[] {
  const last = new Map<string, number>();
  return cells.map((cell) => {
    const name = cell.trim();
    let unique = name;
    let count = last.get(name) ?? 1;
    while (last.has(unique)) unique = `${name} (${++count})`;
    last.set(unique, 1).set(name, count);
    return unique;
  });
}

function* draftsOf(form: Form, columns: readonly string[], rows: ReturnType<typeof rowsOf>): Generator<foreign.Draft> {
  const read = new Set([...form.needs, ...form.read]);
  const positions = new Map(columns.map((column, at) => [column, at] as const));
  const numbered = foreign.keyCounter();
  let count = 0;
  for (const { cells, line } of rows) {
    if (++count > foreign.ENTRIES_MAX)
      throw new foreign.ForeignError('', `it has more than ${foreign.ENTRIES_MAX} rows`);
    const row: Row = (column) => cells[positions.get(column) ?? -1] ?? '';
    const { key, ...draft } = form.draft(row);
    const others = columns.filter((column) => !read.has(column) && row(column) !== '');
    yield {
      ...draft,
      ...{ program: form.program, where: `line ${line}`, key: numbered(key) },
      unplaced: [...(draft.unplaced ?? []), ...others.map((column) => column.slice(0, 40))],
      original: () =>
        foreign.jsonOriginal(form.program, Object.fromEntries(columns.map((column) => [column, row(column)]))),
    };
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

/** A line that is not blank, from its first character that is no space. */
const NOT_BLANK = /\S[^\r\n]*/g;

function bitwardenRow(row: Row): ReturnType<Form['draft']> {
  const [name, user, secret, type] = [row('name'), row('login_username'), row('login_password'), row('type')];
  // Several addresses share one cell, separated by commas.
  const [url = '', ...further] = row('login_uri').split(/,(?=[a-z][\w+.-]*:\/\/)/i);
  const main = foreign.loginItem({ name, url, user, secret });
  const fields = foreign.matchesOf(row('fields'), NOT_BLANK);
  return {
    kind: type === 'note' ? 'secure note' : type.slice(0, 40),
    ...{ name, folder: row('folder') || row('collections'), main, notes: foreign.notesWith(main, url, row('notes')) },
    key: identified(type, row('folder'), name, url, user),
    unplaced: [
      ...foreign.some(further.length, 'further address', 'further addresses'),
      ...(row('login_totp') === '' ? [] : ['the one-time password']),
      ...foreign.some(fields, 'custom field'),
    ],
    marks: [
      ...(row('favorite') === '' || row('favorite') === '0' ? [] : ['favourite']),
      ...(row('reprompt') === '' || row('reprompt') === '0' ? [] : ['ask again']),
    ],
  };
}
