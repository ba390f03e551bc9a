/** The notice of a revoked device, whose data can still be read. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { Button, Notice } from './kit.js';
import { ForgetDialog } from './lock.js';
import { ExportDialog } from './settings-archive.js';
import { pagesText } from './strings-pages.js';

const words = pagesText.revoked;

/** Shown above the list in the phase `revoked`: what happened, and the options export and forget. */
export function RevokedNotice(): JSX.Element {
  const [asked, setAsked] = useState<'export' | 'forget' | null>(null);
  const close = (): void => setAsked(null);
  return (
    <div class="revoked">
      <Notice
        kind="danger"
        title={words.title}
        live
        actions={
          <>
            <Button onClick={() => setAsked('export')}>{words.exportFirst}</Button>
            <Button kind="danger" onClick={() => setAsked('forget')}>
              {words.forget}
            </Button>
          </>
        }
      >
        <p>{words.what}</p>
        <p>{words.back}</p>
      </Notice>
      {asked === 'export' && <ExportDialog onClose={close} lead={words.may} />}
      {asked === 'forget' && <ForgetDialog onClose={close} />}
    </div>
  );
}
