/** Pictures, sound, video, PDF and text, decrypted and shown in the page. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { ItemDetail } from '../link/messages.js';
import { beginning, download, TEXT_MAX, useContent } from './content.js';
import { Download } from 'lucide-preact';
import { Button, Notice } from './kit.js';
import { text } from './strings.js';

const words = text.item;

type Kind = 'image' | 'audio' | 'video' | 'pdf' | 'text' | null;

const TEXTS = /^(text\/|application\/(json|xml|yaml|x-yaml|toml|javascript|x-sh|sql)\b)|\+(json|xml)$/i;
/** Names of text files to which systems give no media type, or a wrong one. */
const TEXT_NAMES =
  /\.(txt|md|log|csv|tsv|json|ya?ml|toml|ini|conf|xml|[cm]?[jt]sx?|py|rb|go|rs|java|kt|c|h|cpp|sh|sql|css|html?)$/i;

/** How a file can be shown. Markup is shown as its source. */
function previewOf({ mime, name }: { readonly mime: string; readonly name: string }): Kind {
  if (TEXT_NAMES.test(name) && !mime.startsWith('image/')) return 'text';
  if (/^image\/(png|jpe?g|gif|webp|avif|bmp|svg\+xml|x-icon|vnd\.microsoft\.icon)$/i.test(mime)) return 'image';
  if (mime.startsWith('audio/')) return 'audio';
  if (mime.startsWith('video/')) return 'video';
  if (mime === 'application/pdf') return 'pdf';
  return TEXTS.test(mime) ? 'text' : null;
}

/** A file shown in the page where that is safe, and its download. */
export function FilePreview({ item }: { item: ItemDetail }) {
  const file = item.file ?? { mime: '', name: item.title, size: null };
  const kind = previewOf(file);
  return (
    <>
      {kind === 'text' && <TextPreview id={item.id} />}
      {kind !== null && kind !== 'text' && <MediaPreview id={item.id} mime={file.mime} name={file.name} kind={kind} />}
      {kind === null && <p class="quiet">{words.noPreview}</p>}
      <p>
        <Button icon={Download} kind="primary" onClick={() => void download(item)}>
          {text.list.download}
          {file.size !== null && <span class="numbers">({text.size(file.size)})</span>}
        </Button>
      </p>
    </>
  );
}

interface MediaProps {
  readonly id: string;
  readonly mime: string;
  readonly name: string;
  readonly kind: 'image' | 'audio' | 'video' | 'pdf';
}

function MediaPreview({ id, mime, name, kind }: MediaProps) {
  const { url, failed, onBroken } = useContent(id, mime);
  if (failed) return <Notice kind="warn">{words.previewFailed}</Notice>;
  if (url === null) return <div class={`preview ${kind} waiting`} aria-busy="true" />;
  switch (kind) {
    case 'image':
      return <img class="preview image" src={url} alt={name} onError={onBroken} />;
    case 'audio':
      return <audio class="preview" controls preload="metadata" src={url} aria-label={name} onError={onBroken} />;
    case 'video':
      return (
        <video
          class="preview video"
          controls
          playsInline
          preload="metadata"
          src={url}
          aria-label={name}
          onError={onBroken}
        />
      );
    case 'pdf':
      return <iframe class="preview pdf" src={url} title={name} />;
  }
}

function TextPreview({ id }: { id: string }) {
  const read = useSignal<{ text: string; whole: boolean } | null | undefined>(undefined);
  useEffect(() => {
    let gone = false;
    beginning(id).then(
      (found) => gone || (read.value = found),
      () => gone || (read.value = null),
    );
    return () => void (gone = true);
  }, [id]);
  if (read.value === undefined) return <div class="preview waiting" aria-busy="true" />;
  if (read.value === null) return <Notice kind="warn">{words.previewFailed}</Notice>;
  return (
    <>
      <pre class="code isolate" dir="auto" tabIndex={0} aria-label={words.preview}>
        <code>{read.value.text}</code>
      </pre>
      {!read.value.whole && <p class="small quiet">{words.textBegin(text.size(TEXT_MAX))}</p>}
    </>
  );
}
