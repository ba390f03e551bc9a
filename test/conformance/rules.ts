/** Reads the rules from test/rules/RULES.md. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { PROJECT_ROOT } from '../../src/root.js';

/** One rule of RULES.md. */
export interface Rule {
  /** Prefix and two or three digits: 'ITEM-01'. */
  readonly id: string;
  readonly sentence: string;
  /** Title of its section. */
  readonly section: string;
  /** The pages that say more about the section's rules: 'the reference, HTTP'. */
  readonly source: string;
}

/** All rules of a text in the form of RULES.md, in its order. */
export function parseRules(text: string): Rule[] {
  const rules: Rule[] = [];
  let section = '';
  let source = '';
  for (const line of text.split('\n')) {
    const title = /^## (.+)$/.exec(line)?.[1];
    if (title !== undefined) [section, source] = [title, ''];
    source = /^Source: (.+)$/.exec(line)?.[1] ?? source;
    const [, id, sentence] = /^- \*\*([A-Z]+-\d{2,3})\*\* (.+)$/.exec(line) ?? [];
    if (id !== undefined && sentence !== undefined) rules.push({ id, sentence, section, source });
  }
  return rules;
}

/** The rules of this checkout. */
export const readRules = (): Rule[] => parseRules(readFileSync(join(PROJECT_ROOT, 'test/rules/RULES.md'), 'utf8'));
