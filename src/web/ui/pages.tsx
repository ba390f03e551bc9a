/** The pages beside the list, loaded after the first view. */
import { useState } from 'preact/hooks';
import { DevicesScreen } from './devices.js';
import { Button, Notice, Points } from './kit.js';
import { ForgetDialog } from './lock.js';
import { SettingsScreen } from './settings.js';
import { ExportDialog } from './settings-archive.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { metaContent } from './meta.js';
import { Copyable } from './screen.js';
import { PageHead } from './section.js';

const { revoked, trust } = pagesText;

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
        title={revoked.title}
        live
        actions={
          <>
            <Button onClick={() => setAsked('export')} label={revoked.exportFirst} />
            <Button kind="danger" onClick={() => setAsked('forget')} label={text.lock.forget} />
          </>
        }
      >
        <p>{revoked.what}</p>
        <p>{revoked.back}</p>
      </Notice>
      {asked === 'export' && <ExportDialog onClose={close} lead={revoked.may} />}
      {asked === 'forget' && <ForgetDialog onClose={close} />}
    </div>
  );
}

/** What a web page can and cannot promise, and how to check. */
function TrustScreen() {
  const version = metaContent('version');
  return (
    <div class="page">
      <PageHead title={trust.title} />
      <article class="stack loose">
        <Part title={trust.can} points={trust.canItems} />
        <Part title={trust.cannot} points={trust.cannotItems} />
        <Part title={trust.stored} points={trust.storedItems} />
        <section class="card stack">
          <h2>{trust.check}</h2>
          <p>{trust.checkLead}</p>
          <Copyable value={`service-device verify-web ${location.origin}`} label={trust.copy} />
          <p>{trust.checkWhen}</p>
          <p>{trust.native}</p>
          {version !== '' && <p class="quiet small">{trust.version(version)}</p>}
        </section>
      </article>
    </div>
  );
}

function Part({ title, points }: { title: string; points: readonly string[] }) {
  return (
    <section class="card stack">
      <h2>{title}</h2>
      <Points points={points} />
    </section>
  );
}
