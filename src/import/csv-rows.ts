/** The rows of CSV text (RFC 4180), one after the other. */
import { ForeignError, matchesOf } from './entries.js';

/** A row, and the line of the text on which it begins. */
interface CsvRow {
  readonly cells: readonly string[];
  readonly line: number;
}

const QUOTE = '"';
/** Ends a cell without quotation marks. */
const CELL_END = /[",\r\n]/g;
const LINE_END = /\r\n|\r|\n/g;

/**
 * The rows, all with as many cells as the first; empty lines are skipped. Line ends are CR, LF or both, in a value too.
 * Throws `ForeignError` for a row of other than the first one's length, a misplaced quotation mark, and more than
 * `columnsMax` columns. Takes time linear in the text's length, and memory for one row.
 */
export function* rowsOf(text: string, columnsMax: number): Generator<CsvRow, void, undefined> {
  let [at, line] = [text.startsWith('\ufeff') ? 1 : 0, 1];
  let width: number | undefined;
  while (at < text.length) {
    const began = line;
    const refused = (why: string): ForeignError => new ForeignError(`line ${began}`, why);
    const cells: string[] = [];
    const begin = at;
    for (let more = true; more;) {
      if (cells.length >= (width ?? columnsMax))
        throw refused(width === undefined ? `it has more than ${columnsMax} columns` : UNEVEN);
      const cell = cellAt(text, at, refused);
      cells.push(cell.value);
      if (cell.quoted) line += matchesOf(cell.value, LINE_END);
      more = text[cell.end] === ',';
      at = cell.end + (text.startsWith('\r\n', cell.end) ? 2 : 1);
    }
    line++;
    // A line without a character; an empty value in quotation marks is a row.
    if (cells.length === 1 && cells[0] === '' && text[begin] !== QUOTE) continue;
    width ??= cells.length;
    if (cells.length < width) throw refused(UNEVEN);
    yield { cells, line: began };
  }
}

const UNEVEN = 'the row has more or fewer columns than the first line';
const MISPLACED = 'a quotation mark is within a value';

/** The cell that begins at `at`; `end`: the place of the comma or line end after it, or the length of the text. */
function cellAt(text: string, at: number, refused: (why: string) => ForeignError) {
  const quoted = text[at] === QUOTE;
  if (quoted) return { ...quotedAt(text, at, refused), quoted };
  CELL_END.lastIndex = at;
  const end = CELL_END.exec(text)?.index ?? text.length;
  if (text[end] === QUOTE) throw refused(MISPLACED);
  return { value: text.slice(at, end), end, quoted };
}

function quotedAt(text: string, at: number, refused: (why: string) => ForeignError) {
  let end = text.indexOf(QUOTE, at + 1);
  while (end >= 0 && text[end + 1] === QUOTE) end = text.indexOf(QUOTE, end + 2);
  if (end < 0) throw refused('a quotation mark is not closed, or the file is cut short');
  const after = text[end + 1];
  if (after !== undefined && !/[,\r\n]/.test(after)) throw refused(MISPLACED);
  return { value: text.slice(at + 1, end).replaceAll(QUOTE + QUOTE, QUOTE), end: end + 1 };
}
