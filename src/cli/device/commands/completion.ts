/** `completion`: what a shell needs to complete this program's commands. */
import { Argument } from 'commander';
import { completionOf, SHELLS, type Shell } from '../completions.js';
import { PROGRAM_NAME } from '../names.js';
import { show } from '../output.js';
import { examples, type Register } from '../run.js';

/** `completion <shell>`. */
export const registerCompletion: Register = (program, run) => {
  program
    .command('completion')
    .addArgument(new Argument('<shell>', 'the shell').choices(SHELLS))
    .summary('completion for bash, zsh or fish')
    .description('Prints a script that lets a shell complete commands and options. It is made from the program itself.')
    .addHelpText(
      'after',
      examples(
        `eval "$(${PROGRAM_NAME} completion bash)"        # in ~/.bashrc`,
        `${PROGRAM_NAME} completion fish | source`,
      ),
    )
    .action(
      run(async ({ terminal }, shell: Shell) => {
        const script = completionOf(program, shell);
        show(terminal, { shell, script }, () => [script.trimEnd()]);
      }),
    );
};
