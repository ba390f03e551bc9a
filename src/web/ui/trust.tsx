/** The page about the limits of a web app's security. */
import { Points } from './kit.js';
import { metaContent } from './meta.js';
import { Copyable } from './screen.js';
import { PageHead } from './section.js';
import { pagesText } from './strings-pages.js';

const words = pagesText.trust;

/** What a web page can and cannot promise, and how to check. */
export function TrustScreen() {
  const version = metaContent('version');
  return (
    <div class="page">
      <PageHead title={words.title} />
      <article class="stack loose">
        <Part title={words.can} points={words.canItems} />
        <Part title={words.cannot} points={words.cannotItems} />
        <Part title={words.stored} points={words.storedItems} />
        <section class="card stack">
          <h2>{words.check}</h2>
          <p>{words.checkLead}</p>
          <Copyable value={`service-device verify-web ${location.origin}`} label={words.copy} />
          <p>{words.checkWhen}</p>
          <p>{words.native}</p>
          {version !== '' && <p class="quiet small">{words.version(version)}</p>}
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
