/** Sends a line to the parent process. */
export const say = (line: { readonly event: string; readonly [field: string]: unknown }): void => {
  process.stdout.write(`${JSON.stringify(line)}\n`);
};

/** An option of the form name=value from the command line. */
export function option(name: string, otherwise?: string): string {
  const found = process.argv.find((each) => each.startsWith(`${name}=`))?.slice(name.length + 1) ?? otherwise;
  if (found === undefined) throw new Error(`missing ${name}=`);
  return found;
}
