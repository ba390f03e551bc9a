/**
 * Tasks for agents (test/agent-tasks.json): what people ask for in plain words, the items that there are, the calls
 * that answer it and what is true after them. A task is run against a companion; then it is judged whether an agent
 * could have known how to make these calls, from the definitions of the tools, the words and the answers alone.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Client } from '@modelcontextprotocol/sdk/client/index.js';
import type { CallToolResult, Tool } from '@modelcontextprotocol/sdk/types.js';
import { Ajv, type ValidateFunction } from 'ajv';
import type { Test } from 'tap';
import { bytesSource } from '../../src/sdk/blobs/source.js';
import type { Device } from '../../src/sdk/device.js';
import { detectPayload } from '../../src/sdk/payloads/shapes.js';
import { text as utf8 } from '../../src/protocol/bytes.js';
import type { ContentType } from '../../src/protocol/item.js';
import { PROJECT_ROOT } from '../../src/root.js';
import { textOf } from './mcp.js';

type Json = Readonly<Record<string, unknown>>;

/** An item that is there before. */
interface Planted {
  readonly key: string;
  /** Default: inbox. */
  readonly bin?: string;
  readonly type: ContentType;
  readonly payload: Json;
  /** Content of a file. */
  readonly file?: string;
  readonly ts?: string;
  /** So many, each a minute older than the one before; `{n}` is their number, and only the first has the key. */
  readonly copies?: number;
}

interface Call {
  readonly tool: string;
  /** `$1.items.0.id`: of the answer to the first call. `{ begins, repeat, times }`: a long text. */
  readonly arguments: Json;
  /** What the structured answer has, among others; `@key`: the id of an item that was there. */
  readonly gives?: Json;
  /** The code that the call is refused with. */
  readonly refused?: string;
  /** What the text of the answer has, as expressions, and what nothing of the answer has, as texts. */
  readonly says?: readonly string[];
  readonly never?: readonly string[];
}

interface Task {
  readonly name: string;
  readonly words: string;
  /** What an agent works out of the words: dates, media types, sentences. */
  readonly worksOut?: readonly string[];
  /** Default: withheld. */
  readonly passwords?: 'allow';
  readonly bins?: readonly { readonly id: string; readonly slug: string; readonly name: string }[];
  readonly items?: readonly Planted[];
  readonly calls: readonly Call[];
  /** Items on another device of the user, by id; null: deleted. All others are as they were. */
  readonly after?: Readonly<Record<string, Json | null>>;
  /** What the definitions of the tools have to say: tool and JSON pointer to an expression. */
  readonly relies?: Readonly<Record<string, string>>;
}

/** A call as it was made, and its answer. */
interface Made {
  readonly tool: string;
  readonly given: Json;
  readonly arguments: Json;
  readonly result: CallToolResult;
}

export interface Solved {
  readonly task: Task;
  readonly calls: readonly Made[];
}

export const TASKS = (
  JSON.parse(readFileSync(join(PROJECT_ROOT, 'test/agent-tasks.json'), 'utf8')) as { readonly tasks: readonly Task[] }
).tasks;

const isJson = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value);

/** The same value with another one in the place of each text and each object that `change` takes. */
function changed(value: unknown, change: (each: unknown) => unknown): unknown {
  const other = change(value);
  if (other !== value) return other;
  if (Array.isArray(value)) return value.map((each) => changed(each, change));
  if (!isJson(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, changed(each, change)]));
}

const written = (value: unknown): unknown =>
  changed(value, (each) => {
    if (!isJson(each) || typeof each['repeat'] !== 'string') return each;
    return `${String(each['begins'])}${each['repeat'].repeat(Number(each['times']))}`;
  });

/** The values that `$1.items.0.id` and `@key` stand for. */
function meant(value: unknown, answers: readonly CallToolResult[], ids: ReadonlyMap<string, string>): unknown {
  return changed(written(value), (each) => {
    if (typeof each !== 'string') return each;
    const [, number, path = ''] = /^\$(\d)\.(.+)$/.exec(each) ?? [];
    if (number !== undefined) return at(answers[Number(number) - 1]?.structuredContent, path.split('.'));
    return each.startsWith('@') ? (ids.get(each.slice(1)) ?? each) : each;
  });
}

/** The value at a path; in an array of schemas a title stands for its schema. */
function at(value: unknown, path: readonly string[]): unknown {
  let found = value;
  for (const name of path) {
    const titled = Array.isArray(found)
      ? (found as readonly unknown[]).find((each) => isJson(each) && each['title'] === name)
      : undefined;
    found = titled ?? (found as Json | undefined)?.[name];
  }
  return found;
}

async function plant(device: Device, { bins = [], items = [] }: Task): Promise<Map<string, string>> {
  const ids = new Map<string, string>();
  for (const { id, slug, name } of bins) await device.bins.create(id, { name }, slug);
  for (const { key, bin = 'inbox', type, payload, file, ts, copies = 1 } of items)
    for (let copy = 0; copy < copies; copy++) {
      const numbered = changed(written(payload), (each) =>
        typeof each === 'string' ? each.replace('{n}', String(copy + 1)) : each,
      );
      const { id } = await device.put({
        ...{ binId: bin, type, payload: numbered as Json },
        ...(ts === undefined ? {} : { ts: Date.parse(ts) - copy * 60_000 }),
        ...(file === undefined ? {} : { content: bytesSource(utf8(file)) }),
      });
      if (copy === 0) ids.set(key, id);
    }
  return ids;
}

/** Makes the calls of a task on what is planted for it, holds the answers, and clears everything away. */
export async function solve(t: Test, task: Task, { client, device }: { client: Client; device: Device }) {
  const ids = await plant(device, task);
  const before = new Set((await device.list()).map(({ id }) => id));
  const calls: Made[] = [];
  const answers: CallToolResult[] = [];
  for (const { tool, arguments: given, gives = {}, refused, says = [], never = [] } of task.calls) {
    const args = meant(given, answers, ids) as Json;
    const result = (await client.callTool({ name: tool, arguments: args })) as CallToolResult;
    answers.push(result);
    calls.push({ tool, given, arguments: args, result });
    const text = textOf(result);
    t.equal((result._meta?.['service-mcp/error'] as Json | undefined)?.['code'], refused, `${task.name}: ${text}`);
    if (refused === undefined) t.match(result.structuredContent, meant(gives, answers, ids), task.name);
    for (const expression of says) t.match(text, new RegExp(expression, 's'), task.name);
    for (const word of never) t.notOk(JSON.stringify(result).includes(String(meant(word, [], ids))), task.name);
    const { id, deleted } = (result.structuredContent ?? {}) as { readonly id?: string; readonly deleted?: true };
    if (id !== undefined && deleted === true) before.delete(id);
    else if (id !== undefined) before.add(id);
  }
  await device.pull();
  const there = await device.list();
  t.same(new Set(there.map(({ id }) => id)), before, `${task.name}: nothing else came or went`);
  for (const [ref, expected] of Object.entries(task.after ?? {})) {
    const id = meant(ref, answers, ids) as string;
    const found = there.find((item) => item.id === id);
    if (expected === null || found === undefined) t.equal(found ?? null, expected, task.name);
    else {
      const payload = found.blob?.holds === 'payload' ? await device.payload(id) : found.payload;
      t.match({ ...found, payload }, written(expected), task.name);
    }
  }
  for (const { id } of there) await device.delete(id);
  for (const { id } of task.bins ?? []) await device.bins.remove(id);
  return { task, calls } satisfies Solved;
}

const folded = (text: string): string => text.normalize('NFC').replace(/\s+/gu, ' ').toLowerCase();

/** Texts of the arguments that an agent has to know: all but those that were taken from an answer, and long ones. */
function texts(value: unknown): readonly string[] {
  if (typeof value === 'string') return value.startsWith('$') ? [] : [value];
  if (isJson(value) && typeof value['repeat'] === 'string') return [];
  if (typeof value !== 'object' || value === null) return [];
  return Object.values(value).flatMap(texts);
}

/** Arguments that neither the words, nor the answers before, nor what is said of the arguments tells. */
function guessed({ task, calls }: Solved, tools: readonly Tool[]): readonly string[] {
  let known = [task.words, ...(task.worksOut ?? [])].map(folded).join('\n');
  return calls.flatMap(({ tool, given, result }) => {
    const { type: _, ...others } = given;
    const properties = Object.values(tools.find(({ name }) => name === tool)?.inputSchema.properties ?? {});
    const said = properties.map((each) => folded('description' in each ? String(each.description) : '')).join('\n');
    const unknown = texts(others).filter((text) => !`${known}\n${said}`.includes(folded(text)));
    known += `\n${folded(textOf(result))}`;
    return unknown;
  });
}

/** Compiled once each: they are validated with over and over. */
const ajv = new Ajv({ strict: false, validateSchema: false, addUsedSchema: false });
const compiled = new Map<string, ValidateFunction>();
function fits(schema: object, value: unknown): boolean {
  const text = JSON.stringify(schema);
  const validate = compiled.get(text) ?? ajv.compile(schema);
  compiled.set(text, validate);
  return validate(value);
}

/**
 * Why a task cannot be solved as it was with these definitions of the tools; empty: it can. Nothing of the arguments is
 * guessed, arguments and answers fit the schemas, a payload the alternative of its type, which has an example with all
 * the fields that are used; and the definitions say what the task relies on.
 */
export function broken(solved: Solved, tools: readonly Tool[]): readonly string[] {
  const { task, calls } = solved;
  const faults = guessed(solved, tools).map((text) => `guessed: ${text}`);
  const toolOf = (name: string): Tool | undefined => tools.find((tool) => tool.name === name);
  for (const { tool, arguments: args, result } of calls) {
    const found = toolOf(tool);
    const wrong = ['bad_input', 'bad_payload'].includes(
      String((result._meta?.['service-mcp/error'] as Json | undefined)?.['code']),
    );
    if (found === undefined) faults.push(`no tool ${tool}`);
    else if (wrong === fits(found.inputSchema, args)) faults.push(`${tool}: arguments`);
    else if (!wrong && isJson(args['payload'])) faults.push(...payloadFaults(found, args));
    if (result.structuredContent !== undefined && !fits(found?.outputSchema ?? {}, result.structuredContent))
      faults.push(`${tool}: answer`);
  }
  for (const [where, expression] of Object.entries(task.relies ?? {})) {
    const [name = '', pointer = ''] = where.split(' ');
    const said = at(toolOf(name), pointer.split('/').slice(1));
    if (typeof said !== 'string' || !new RegExp(expression, 's').test(said)) faults.push(where);
  }
  return faults;
}

function payloadFaults(tool: Tool, { type, payload }: Json): readonly string[] {
  const detected = detectPayload(payload as Json);
  const title = typeof type === 'string' ? type : detected.type;
  const schema = at(tool, ['inputSchema', 'properties', 'payload', 'anyOf', title]);
  if (!isJson(schema)) return ['no such type'];
  const examples = (schema['examples'] ?? []) as readonly Json[];
  const used = Object.keys(detected.payload);
  return [
    ...(fits(schema, type === undefined ? detected.payload : payload) ? [] : ['payload']),
    ...(examples.some((example) => used.every((name) => Object.hasOwn(example, name))) ? [] : ['no example']),
  ];
}

/** One piece less, with the pointer of what is missing. */
interface Mutation {
  readonly missing: string;
  readonly tools: readonly Tool[];
}

/** The definitions without each property, alternative, example and description, and without each sentence of a tool's. */
export function* mutations(tools: readonly Tool[]): Generator<Mutation> {
  for (const [index, tool] of tools.entries()) {
    const without = (path: readonly string[], value?: string): Mutation => {
      const copy = structuredClone(tools) as Tool[];
      const parent = at(copy[index], path.slice(0, -1)) as Record<string, unknown> | unknown[];
      const last = path.at(-1) ?? '';
      if (Array.isArray(parent)) parent.splice(Number(last), 1);
      else if (value === undefined) Reflect.deleteProperty(parent, last);
      else parent[last] = value;
      return { missing: `${tool.name} /${path.join('/')}${value === undefined ? '' : `: ${value}`}`, tools: copy };
    };
    const sentences = (tool.description ?? '').split(/(?<=\.) /);
    for (const left of sentences)
      yield without(['description'], sentences.filter((sentence) => sentence !== left).join(' '));
    for (const path of pieces(tool.inputSchema, ['inputSchema'])) yield without(path);
    for (const path of pieces(tool.outputSchema ?? {}, ['outputSchema']))
      if (path.at(-1) !== 'description') yield without(path);
  }
}

/** Paths of all properties, alternatives, examples and descriptions of a schema. */
function pieces(schema: unknown, path: readonly string[]): readonly (readonly string[])[] {
  if (!isJson(schema)) return [];
  return Object.entries(schema).flatMap(([name, each]): readonly (readonly string[])[] => {
    const here = [...path, name];
    if (name === 'description' || name === 'examples') return [here];
    if (name === 'items') return pieces(each, here);
    // In an answer `anyOf` is a value that may be null, as it is where a server lies.
    if (name === 'anyOf' && path[0] === 'outputSchema') return [];
    if (name !== 'properties' && name !== 'anyOf') return [];
    return Object.entries(each as object).flatMap(([key, inner]) => [[...here, key], ...pieces(inner, [...here, key])]);
  });
}
