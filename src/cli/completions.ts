/**
 * Shell completion, generated from the program, so that it always has the program's commands and options. For items,
 * bins and devices the shell queries the program (`candidates.ts`).
 */
import { Argument, type Command, type Option } from 'commander';
import { COMPLETE, flagsOf, hasCompletableArgument, optionKind, specOf } from './completion-spec.js';
import type { DeviceCommand } from './context.js';
import { show } from '../terminal/output.js';

const SHELLS = ['bash', 'zsh', 'fish'] as const;
type Shell = (typeof SHELLS)[number];

interface CommandNode {
  /** '' for the program, `bins add` for a sub-command. */
  readonly path: string;
  readonly commands: readonly { readonly name: string; readonly summary: string }[];
  readonly options: readonly Option[];
  /** See `completion-spec.ts`. */
  readonly spec: string;
}

/** True where the option's values are items, bins or devices, which the program lists (`candidates.ts`). */
const hasCandidates = (option: Option): boolean => optionKind(option) !== '';

/** A command and those below it. `inherited`: the program's options that each of them takes. */
function nodesOf(program: Command, command: Command, path: string, inherited: readonly Option[]): CommandNode[] {
  const options = [...command.createHelp().visibleOptions(command), ...inherited];
  const children = command.commands.flatMap((child) =>
    [child.name(), ...child.aliases()].map((name) => ({ child, name })),
  );
  const commands = children.map(({ child, name }) => ({ name, summary: child.summary() || child.description() }));
  const spec = specOf(command, path, [...command.options, ...program.options]);
  const global = path === '' ? options.filter(({ long }) => long !== '--help' && long !== '--version') : inherited;
  const below = children.flatMap(({ child, name }) =>
    nodesOf(program, child, path === '' ? name : `${path} ${name}`, global),
  );
  return [{ path, options, commands, spec }, ...below];
}

export function completionOf(program: Command, shell: Shell): string {
  const nodes = nodesOf(program, program, '', []);
  const name = program.name();
  if (shell === 'fish') return fish(name, nodes);
  return shell === 'zsh' ? zsh(name, nodes) : bash(name, nodes);
}

const functionOf = (name: string): string => `_${name.replace(/[^A-Za-z0-9]/g, '_')}`;
const quote = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;
const wordsOf = ({ commands, options }: CommandNode): string =>
  [...commands.map((command) => command.name), ...options.flatMap(flagsOf)].join(' ');

/**
 * The `case` branches that bash and zsh share: the command on the line, its words, the values of an option, and the
 * options whose values the program completes.
 */
function cases(nodes: readonly CommandNode[]): Readonly<Record<'paths' | 'words' | 'values', string>> {
  const paths = nodes.filter(({ path }) => path !== '').map(({ path }) => `"${path}"`);
  const options = nodes.flatMap((node) => node.options);
  const choices = new Map(options.flatMap(({ long, argChoices }) => (argChoices && long ? [[long, argChoices]] : [])));
  const dynamic = new Set(options.filter(hasCandidates).flatMap(flagsOf));
  return {
    paths: paths.join('|'),
    words: nodes
      .map((node) => `    "${node.path}") words=${quote(wordsOf(node))} spec=${quote(node.spec)} ;;`)
      .join('\n'),
    values: [
      ...[...choices].map(([flag, values]) => `    ${flag}) words=${quote(values.join(' '))} ;;`),
      `    ${[...dynamic].join('|')}) words="" dynamic=1 ;;`,
    ].join('\n'),
  };
}

function bash(name: string, nodes: readonly CommandNode[]): string {
  const { paths, words, values } = cases(nodes);
  // The candidates contain text from other devices: a shell must quote it (`printf %q`) and never expand it.
  return `# Completion of ${name} for bash: eval "$(${name} completion bash)"
${functionOf(name)}() {
  local current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD - 1]}" at="" words="" spec="" dynamic="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "\${at:+$at }\${COMP_WORDS[i]}" in
      ${paths}) at="\${at:+$at }\${COMP_WORDS[i]}" ;;
    esac
  done
  case "$at" in
${words}
  esac
  case " $spec" in *" @"[a-z]*) dynamic=1 ;; esac
  case "$previous" in
${values}
  esac
  COMPREPLY=()
  case "$current" in -*) dynamic="" ;; esac
  if [ -n "$dynamic" ]; then
    local value what lines=() titles=()
    while IFS=$'\\t' read -r value what; do
      lines+=("$(printf '%q' "$value")") titles+=("$what")
    done < <(${name} ${COMPLETE} "$spec" -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    for ((i = 0; i < \${#lines[@]}; i++)); do
      if [ \${#lines[@]} -gt 1 ] && [ -n "\${titles[i]}" ]; then COMPREPLY+=("\${lines[i]}  (\${titles[i]})")
      else COMPREPLY+=("\${lines[i]}"); fi
    done
    return
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F ${functionOf(name)} ${name}
`;
}

function zsh(name: string, nodes: readonly CommandNode[]): string {
  const { paths, words, values } = cases(nodes);
  return `#compdef ${name}
# Completion of ${name} for zsh: eval "$(${name} completion zsh)"
${functionOf(name)}() {
  local at="" typed="" found="" spec="" dynamic="" previous="\${words[CURRENT - 1]}"
  for typed in "\${(@)words[2,CURRENT - 1]}"; do
    case "\${at:+$at }$typed" in
      ${paths}) at="\${at:+$at }$typed" ;;
    esac
  done
  case "$at" in
${words.replaceAll('words=', 'found=')}
  esac
  case " $spec" in *" @"[a-z]*) dynamic=1 ;; esac
  case "$previous" in
${values.replaceAll('words=', 'found=')}
  esac
  case "\${words[CURRENT]}" in -*) dynamic="" ;; esac
  if [[ -n "$dynamic" ]]; then
    local value what
    local -a values shown
    while IFS=$'\\t' read -r value what; do
      values+=("$value") shown+=("$value\${what:+  $what}")
    done < <(${name} ${COMPLETE} "$spec" -- "\${(@)words[2,CURRENT]}" 2>/dev/null)
    (( \${#values} )) && compadd -M 'm:{a-zA-Z}={A-Za-z}' -l -d shown -a values
    return
  fi
  compadd -- \${(s: :)found}
  _files
}
compdef ${functionOf(name)} ${name}
`;
}

function fish(name: string, nodes: readonly CommandNode[]): string {
  const candidates = (spec: string): string => {
    const words = '(commandline -opc)[2..-1] (commandline -ct; echo)[1]';
    return quote(`(${name} ${COMPLETE} ${quote(spec)} -- ${words} 2>/dev/null)`);
  };
  const lines = nodes.flatMap((node) => {
    const parts = node.path.split(' ');
    const below = node.commands.map((command) => command.name).join(' ');
    const reached = node.path === '' ? [] : parts.map((part) => `__fish_seen_subcommand_from ${part}`);
    const notYet = below === '' ? [] : [`not __fish_seen_subcommand_from ${below}`];
    const condition = [...reached, ...notYet].join('; and ');
    const when = condition === '' ? '' : ` -n ${quote(condition)}`;
    const commands = node.commands.map(
      (command) => `complete -c ${name} -f${when} -a ${command.name} -d ${quote(command.summary)}`,
    );
    const options = node.options.map((option) => {
      const { short, long, argChoices: values, description } = option;
      const spelled =
        (short === undefined ? '' : ` -s ${short.slice(1)}`) + (long === undefined ? '' : ` -l ${long.slice(2)}`);
      const fixed = values === undefined ? '' : ` -x -a ${quote(values.join(' '))}`;
      const choice = hasCandidates(option) ? ` -k -x -a ${candidates(node.spec)}` : fixed;
      return `complete -c ${name}${when}${spelled}${choice} -d ${quote(description)}`;
    });
    return [
      ...commands,
      ...options,
      ...(hasCompletableArgument(node.spec) ? [`complete -c ${name} -k -f${when} -a ${candidates(node.spec)}`] : []),
    ];
  });
  return `# Completion of ${name} for fish: ${name} completion fish | source\n${lines.join('\n')}\n`;
}

export function registerCompletion(program: DeviceCommand): void {
  program
    .command('completion')
    .addArgument(new Argument('<shell>', 'the shell').choices(SHELLS))
    .summary('completion for bash, zsh or fish')
    .description(
      'Prints a script that lets a shell complete commands, options, items with their titles, bins and devices. It is made ' +
        'from the program itself.',
    )
    .examples('eval "$($0 completion bash)"        # in ~/.bashrc', 'completion fish | source')
    .does(async ({ terminal }, shell: Shell) => {
      const script = completionOf(program, shell);
      show(terminal, { shell, script }, () => [script.trimEnd()]);
    });
}
