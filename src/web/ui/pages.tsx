/** The pages beside the list, loaded after the first view. */
import { DevicesScreen } from './devices.js';
import { Button, Notice, openDialog, Points } from './kit.js';
import { askForget } from './lock.js';
import { SettingsScreen } from './settings.js';
import { ExportDialog } from './settings-archive.js';
import * as text from './strings.js';
import { pagesText } from './strings-pages.js';
import { metaContent } from './meta.js';
import { Copyable } from './screen.js';
import { PageFrame, Section } from './section.js';

export { HiddenList } from './settings.js';

const { revoked, trust } = pagesText;

/** By the part of the address; `revoked`: the notice above the list. */
const PAGES = { devices: DevicesScreen, settings: SettingsScreen, trust: TrustScreen, revoked: RevokedNotice } as const;

export function Page({ page }: { page: keyof typeof PAGES }) {
  const Shown = PAGES[page];
  return <Shown />;
}

/** Shown above the list in the phase `revoked`: what happened, and the options export and forget. */
function RevokedNotice() {
  const exportFirst = (): void => void openDialog((dialog) => <ExportDialog {...dialog} lead={revoked.may} />);
  return (
    <div class="revoked">
      <Notice
        kind="danger"
        title={revoked.title}
        live
        actions={
          <>
            <Button onClick={exportFirst} label={revoked.exportFirst} />
            <Button kind="danger" onClick={askForget} label={text.lock.forget} />
          </>
        }
      >
        <p>{revoked.what}</p>
        <p>{revoked.back}</p>
      </Notice>
    </div>
  );
}

/** What a web page can and cannot promise, and how to check. */
function TrustScreen() {
  const version = metaContent('version');
  return (
    <PageFrame title={trust.title}>
      <Part title={trust.can} points={trust.canItems} />
      <Part title={trust.cannot} points={trust.cannotItems} />
      <Part title={trust.stored} points={trust.storedItems} />
      <Section title={trust.check}>
        <p>{trust.checkLead}</p>
        <Copyable value={`service-device verify-web ${location.origin}`} label={trust.copy} />
        <p>{trust.checkWhen}</p>
        <p>{trust.native}</p>
        {version !== '' && <p class="quiet small">{trust.version(version)}</p>}
      </Section>
    </PageFrame>
  );
}

function Part({ title, points }: { title: string; points: readonly string[] }) {
  return (
    <Section title={title}>
      <Points points={points} />
    </Section>
  );
}
