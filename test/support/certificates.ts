/** An authority of one's own: a root, an intermediate, and a server's certificate, made by openssl. */
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** A chain for a server of that name, as PEM texts; `key`: of its certificate, `leaf`. `folder` is the test's own. */
export async function chainOf(folder: string, name: string) {
  const at = (file: string): string => join(folder, file);
  const fresh = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  const authority = 'basicConstraints=critical,CA:TRUE';
  await run('openssl', [
    ...['req', '-x509', ...fresh, '-days', '30', '-subj', '/CN=Home Root', '-addext', `subjectAltName=DNS:${name}`],
    ...['-keyout', at('root.key'), '-out', at('root.pem')],
  ]);
  const signed = async (own: string, by: string, [subject, extension]: readonly [string, string]): Promise<void> => {
    await writeFile(at(`${own}.ext`), `${extension}\n`);
    await run('openssl', [
      'req',
      ...fresh,
      '-subj',
      `/CN=${subject}`,
      '-keyout',
      at(`${own}.key`),
      '-out',
      at(`${own}.csr`),
    ]);
    await run('openssl', [
      ...['x509', '-req', '-in', at(`${own}.csr`), '-CA', at(`${by}.pem`), '-CAkey', at(`${by}.key`)],
      ...['-CAcreateserial', '-days', '10', '-extfile', at(`${own}.ext`), '-out', at(`${own}.pem`)],
    ]);
  };
  await signed('intermediate', 'root', ['Home Intermediate', authority]);
  await signed('leaf', 'intermediate', [name, `subjectAltName=DNS:${name}`]);
  const [root = '', rootKey = '', intermediate = '', leaf = '', key = ''] = await Promise.all(
    ['root.pem', 'root.key', 'intermediate.pem', 'leaf.pem', 'leaf.key'].map(async (file) =>
      readFile(at(file), 'utf8'),
    ),
  );
  return { root, rootKey, intermediate, leaf, key };
}
