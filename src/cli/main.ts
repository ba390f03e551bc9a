#!/usr/bin/env node
/** `service-device`: a device in the terminal. Wires the program to this process. */
import { nodePlatform } from '../sdk/node-platform.js';
import { RELEASE } from '../root.js';
import { runProcess } from '../terminal/process.js';
import { failureOf } from './failure.js';
import { runProgram } from './program.js';

const platform = await nodePlatform();

await runProcess({ failureOf, run: (call) => runProgram({ ...call, ...RELEASE, platform }) });
