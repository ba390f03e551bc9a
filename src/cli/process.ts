/** The program as this process: its platform, and the version of this release. */
import { nodePlatform } from '../sdk/node-platform.js';
import { RELEASE } from '../root.js';
import { runProcess } from '../terminal/process.js';
import { failureOf } from './failure.js';
import { runProgram } from './program.js';

/** Runs one call with this process's arguments and streams, and ends the process. */
export async function runService(): Promise<never> {
  const platform = await nodePlatform();
  return runProcess({ failureOf, run: (call) => runProgram({ ...call, ...RELEASE, platform }) });
}
