/**
 * What another app shares into this one (Web Share Target) arrives as a form. It is stored in this browser and never
 * sent to the server in this form: the engine puts it as items when a device is open.
 */
import { Shared, type NewShare, type ShareRefusal } from '../engine/shared.js';

const textOf = (form: FormData, name: string): string => {
  const value = form.get(name);
  return typeof value === 'string' ? value.trim() : '';
};

async function shareIn(request: Request): Promise<NewShare> {
  const form = await request.formData();
  const files = form.getAll('files').filter((part): part is File => typeof part !== 'string');
  // An app that shares no file may send an empty one without a name.
  return {
    ...{ title: textOf(form, 'title'), text: textOf(form, 'text'), url: textOf(form, 'url') },
    files: files.filter(({ name, size }) => size > 0 || name !== ''),
  };
}

/**
 * True if another site has sent the form. The system sends the origin `null`, but so does a site that hides its own: a
 * stored share can still come from any site that was open.
 */
function isForeign({ headers }: Request, own: string): boolean {
  const origin = headers.get('origin');
  return origin !== null && origin !== 'null' && origin !== own;
}

/** Stores the share, and redirects to the page that shows waiting shares, with the reason if it was refused. */
export async function takeShare(request: Request, own: string): Promise<Response> {
  let refused: ShareRefusal | null;
  try {
    if (isForeign(request, own)) return Response.redirect('/#/shared?refused=foreign', 303);
    const shared = await Shared.open();
    try {
      refused = await shared.add(await shareIn(request));
    } finally {
      shared.close();
    }
  } catch {
    refused = 'unreadable';
  }
  return Response.redirect(refused === null ? '/#/shared' : `/#/shared?refused=${refused}`, 303);
}
