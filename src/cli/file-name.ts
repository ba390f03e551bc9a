/** Names of files that other devices or programs have chosen, made safe for this system's folders. */

/** File systems limit names to 255 bytes, and the temporary file's name is longer than the final one. */
const NAME_BYTES = 180;
/** Largest name made from a title, bytes. */
export const TITLE_BYTES = 80;
/** Device names of Windows, with any extension. */
const RESERVED = /^(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(?:\.|$)/i;

/** The name, truncated for the file system. A short extension is kept. */
function shortened(name: string, most: number): string {
  if (Buffer.byteLength(name) <= most) return name;
  const [ending = ''] = /\.[^.]{1,10}$/u.exec(name) ?? [];
  let room = most - Buffer.byteLength(ending);
  let kept = '';
  for (const character of name.slice(0, name.length - ending.length)) {
    room -= Buffer.byteLength(character);
    if (room < 0) break;
    kept += character;
  }
  return kept + ending;
}

/** A name without path, control characters and device names, at most `most` bytes long; empty if nothing is left. */
export function safeFileName(name: string, most = NAME_BYTES): string {
  const safe = name
    .replace(/^.*[/\\]/s, '')
    // Control and format characters, and characters that other systems forbid.
    .replace(/[\p{Cc}\p{Cf}\p{Cs}<>:"|?*]/gu, '_')
    .replace(/^[.\s-]+|[.\s]+$/g, '');
  return shortened(RESERVED.test(safe) ? `_${safe}` : safe, most);
}
