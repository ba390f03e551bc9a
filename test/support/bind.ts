/** What a call in PostgreSQL's binary format says, read by the manual (Frontend/Backend Protocol, Bind), not by our writer. */
import type pg from 'pg';

const INT4 = 23;
const INT8 = 20;
const BYTEA = 17;

/** Reads one message from its begin. */
class Reader {
  at = 0;

  constructor(private readonly bytes: Buffer) {}

  int16(): number {
    this.at += 2;
    return this.bytes.readInt16BE(this.at - 2);
  }

  int32(): number {
    this.at += 4;
    return this.bytes.readInt32BE(this.at - 4);
  }

  int8(): number {
    this.at += 8;
    return Number(this.bytes.readBigInt64BE(this.at - 8));
  }

  cString(): string {
    const from = this.at;
    this.at = this.bytes.indexOf(0, from) + 1;
    return this.bytes.toString('latin1', from, this.at - 1);
  }

  take(length: number): Buffer {
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }
}

function arrayOf(bytes: Buffer): unknown[] {
  const reader = new Reader(bytes);
  const dimensions = reader.int32();
  reader.int32();
  const type = reader.int32();
  if (dimensions === 0) return [];
  const count = reader.int32();
  reader.int32();
  const values = Array.from({ length: count }, () => {
    const length = reader.int32();
    if (length < 0) return null;
    if (type === INT4) return reader.int32();
    return type === INT8 ? reader.int8() : reader.take(length).toString('latin1');
  });
  if (reader.at !== bytes.length) throw new Error(`${bytes.length - reader.at} bytes behind the array`);
  return values;
}

/** The statement that a query calls, and its parameters: numbers, arrays and, as the last, bytes. */
export function parametersOf(query: pg.Query): { readonly name: string; readonly values: readonly unknown[] } {
  const pieces: Buffer[] = [];
  const ignore = (): void => undefined;
  query.submit({
    stream: { cork: ignore, uncork: ignore, write: (piece: Buffer) => pieces.push(Buffer.from(piece)) },
    parsedStatements: {},
    ...{ parse: ignore, describe: ignore, execute: ignore, sync: ignore },
  } as unknown as pg.Connection);
  const message = Buffer.concat(pieces);
  const reader = new Reader(message);
  if (reader.take(1).toString() !== 'B' || reader.int32() !== message.length - 1) throw new Error('not a Bind message');
  if (reader.cString() !== '') throw new Error('not the unnamed portal');
  const name = reader.cString();
  if (reader.int16() !== 1 || reader.int16() !== 1) throw new Error('not all in binary format');
  const count = reader.int16();
  const values = Array.from({ length: count }, (_, n) => {
    const length = reader.int32();
    const bytes = reader.take(length);
    if (n === count - 1) return { type: BYTEA, bytes };
    return length === 8 ? new Reader(bytes).int8() : arrayOf(bytes);
  });
  return { name, values };
}
