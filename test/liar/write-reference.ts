/** Writes the page of the reference and the section of the rules that are generated from the catalogue of lies. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PROJECT_ROOT } from '../../src/root.js';
import { attacksPage, rules } from './catalogue.js';

const RULES = join(PROJECT_ROOT, 'test/rules/RULES.md');
const HEADING = '## Lying servers\n';

writeFileSync(join(PROJECT_ROOT, 'src/docs/attacks.md'), attacksPage());
const text = readFileSync(RULES, 'utf8');
const start = text.indexOf(HEADING);
if (start < 0) throw new Error('RULES.md has no section for lying servers');
const next = text.indexOf('\n## ', start);
const source = text.slice(start + HEADING.length).split('\n', 1)[0] ?? '';
const section = [HEADING.trimEnd(), source, '', ...rules(), ''].join('\n');
writeFileSync(RULES, text.slice(0, start) + section + (next < 0 ? '' : text.slice(next)));
