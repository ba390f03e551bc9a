/** The content of an item, by its kind. All of it is untrusted and shown as text. */
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';
import type { JsonObject } from '../../crypto/payload.js';
import type { ItemDetail } from '../link/messages.js';
import { copy, copyItem } from './clipboard.js';
import { Copy, ExternalLink } from 'lucide-preact';
import { fieldOf } from './fields.js';
import { honest } from './honest.js';
import { Button, ShowButton } from './kit.js';
import { FilePreview } from './preview.js';
import { text } from './strings.js';

const words = text.item;

interface BodyProps {
  readonly item: ItemDetail;
  readonly payload: JsonObject;
}

export function ItemBody({ item, payload }: BodyProps) {
  const field = (name: string): string => fieldOf(payload, name);
  switch (item.type) {
    case 'password':
      return (
        <Values>
          <Value name="service" value={field('service')} />
          <Value name="user" value={field('user')} />
          <Secret item={item} value={field('secret')} />
        </Values>
      );
    case 'link':
      return <LinkBody item={item} field={field} />;
    case 'text':
      return (
        <p class="prose keep isolate" dir="auto">
          {honest(field('text'))}
        </p>
      );
    case 'code':
      return (
        <pre class="code isolate" dir="ltr" tabIndex={0} aria-label={text.list.kind.code}>
          <code>{honest(field('text'))}</code>
        </pre>
      );
    case 'contact':
      return (
        <Values>
          <Value name="name" value={field('name')} />
          <Value name="role" value={field('role')} />
          <Value name="email" value={field('email')} href={mailHref(field('email'))} />
          <Value name="phone" value={field('phone')} href={phoneHref(field('phone'))} />
        </Values>
      );
    case 'location':
      return <PlaceBody field={field} />;
    default:
      return <FilePreview key={item.id} item={item} />;
  }
}

type FieldReader = (name: string) => string;

function Values({ children }: { children: ComponentChildren }) {
  return <dl class="card flush">{children}</dl>;
}

/** A field with its name and a way to copy it; nothing for an empty one. `href`: where it leads. */
function Value({ name, value, href }: { name: string; value: string; href?: string }) {
  if (value === '') return null;
  const label = text.fields.labels[name] ?? name;
  return (
    <div class="value">
      <dt>{label}</dt>
      <dd>
        {href === undefined ? (
          <bdi>{honest(value)}</bdi>
        ) : (
          <a href={href}>
            <bdi>{honest(value)}</bdi>
          </a>
        )}
      </dd>
      <dd>
        <Button kind="icon" icon={Copy} label={words.copyField(label)} onClick={() => void copy(value, false)} />
      </dd>
    </div>
  );
}

/** A masked field. It hides itself again when the page is left. */
function Secret({ item, value }: { item: ItemDetail; value: string }) {
  const shown = useSignal(false);
  useEffect(() => {
    const hide = (): void => {
      if (document.visibilityState === 'hidden') shown.value = false;
    };
    document.addEventListener('visibilitychange', hide);
    return () => document.removeEventListener('visibilitychange', hide);
  }, []);
  const label = text.fields.labels['secret'] ?? '';
  return (
    <div class="value">
      <dt>{label}</dt>
      <dd>
        {shown.value ? (
          <bdi class="mono keep">{value}</bdi>
        ) : (
          <span class="masked" aria-label={text.kit.hidden}>
            ••••••••••
          </span>
        )}
      </dd>
      <dd>
        <ShowButton shown={shown.value} onShown={(next) => (shown.value = next)} />
        <Button kind="icon" icon={Copy} label={words.copyField(label)} onClick={() => void copyItem(item)} />
      </dd>
    </div>
  );
}

function LinkBody({ item, field }: { item: ItemDetail; field: FieldReader }) {
  return (
    <>
      <Values>
        <Value name="url" value={field('url')} />
        <Value name="desc" value={field('desc')} />
      </Values>
      {item.href !== null && (
        <p>
          <a class="button primary" href={item.href} target="_blank" rel="noopener noreferrer">
            <ExternalLink />
            {text.list.open}
          </a>
        </p>
      )}
    </>
  );
}

/** Keeps only digits and `+`, so that a program cannot take the address for a command. */
const phoneHref = (phone: string): string => `tel:${phone.replace(/[^\d+]/g, '')}`;

const mailHref = (email: string): string => `mailto:${encodeURIComponent(honest(email)).replace('%40', '@')}`;

function PlaceBody({ field }: { field: FieldReader }) {
  const [lat, lng] = [field('lat'), field('lng')];
  const there = lat !== '' && lng !== '' && Number.isFinite(Number(lat)) && Number.isFinite(Number(lng));
  const place = `mlat=${Number(lat)}&mlon=${Number(lng)}#map=16/${Number(lat)}/${Number(lng)}`;
  return (
    <>
      <Values>
        <Value name="name" value={field('name')} />
        <Value name="addr" value={field('addr')} />
        {there && <Value name="coordinates" value={`${lat}, ${lng}`} />}
      </Values>
      {there && (
        <p>
          <a class="button" href={`https://www.openstreetmap.org/?${place}`} target="_blank" rel="noopener noreferrer">
            <ExternalLink />
            {words.mapsOpen}
          </a>
        </p>
      )}
    </>
  );
}
