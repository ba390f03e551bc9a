/** The pages beside the list, loaded after the first view. */
import { useState } from 'preact/hooks';
import { DevicesScreen } from './devices.js';
import { Button, Notice } from './kit.js';
import { ForgetDialog } from './lock.js';
import { SettingsScreen } from './settings.js';
import { ExportDialog } from './settings-archive.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { TrustScreen } from './trust.js';

const words = pagesText.revoked;

/** `revoked`: the notice above the list. */
export function Page({ page }: { page: 'devices' | 'settings' | 'trust' | 'revoked' }) {
  switch (page) {
    case 'devices':
      return <DevicesScreen />;
    case 'settings':
      return <SettingsScreen />;
    case 'trust':
      return <TrustScreen />;
    case 'revoked':
      return <RevokedNotice />;
  }
}

/** Shown above the list in the phase `revoked`: what happened, and the options export and forget. */
function RevokedNotice() {
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
              {text.lock.forget}
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
