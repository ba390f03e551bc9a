/** The web app: does the server serve browsers the files of this release? */
import { compareWebApp, readRelease } from '../web-check.js';
import { PROGRAM_NAME } from '../context.js';
import { about, type DoctorContext, type Finding } from './finding.js';

/** A missing web app, or one of another version, is no problem: there is nothing to compare. */
export async function checkWebApp({ platform, identity }: DoctorContext): Promise<Finding> {
  const { ok, problem } = about('web');
  const release = await readRelease();
  if (release === undefined) return ok('This program has no files of the web app, so it was not compared.');
  const { version } = release;
  const app = await compareWebApp(platform, identity.serverUrl, release);
  if (app.kind === 'none') return ok('The server serves no web app (WEB_APP is off).');
  if (app.kind === 'other')
    return ok(`The server runs version ${app.version}, this program ${version}: its web app was not compared.`);
  const wrong = app.files.filter(({ found }) => found !== 'same');
  if (wrong.length === 0) return ok(`The web app that the server serves is version ${version}.`);
  const [first] = wrong;
  return problem(
    `The web app that the server serves is not version ${version}: ${wrong.length} of ${app.files.length} files (${first?.path ?? ''}).`,
    `Do not open it in a browser until you know why: \`${PROGRAM_NAME} verify-web\` lists the files. A proxy that rewrites pages does this too.`,
  );
}
