/** Files dropped anywhere in the window, and files and pictures pasted anywhere. */
import { useSignal } from '@preact/signals';
import { Upload } from 'lucide-preact';
import { binName } from './actions.js';
import { upload } from './composer.js';
import { useListening } from './kit.js';
import * as text from './strings.js';

const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes('Files') ?? false;

/** The bin in the side bar that a file is dragged over. */
const binUnder = ({ target }: Event): string | undefined =>
  (target instanceof Element && target.closest<HTMLElement>('[data-bin]')?.dataset['bin']) || undefined;

/** Covers the window while files are dragged over it. */
export function DropZone() {
  const over = useSignal<{ readonly bin: string | undefined } | null>(null);
  useListening({
    dragover: (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      const bin = binUnder(event);
      if (over.value === null || over.value.bin !== bin) over.value = { bin };
    },
    dragleave: (event) => {
      if (event.relatedTarget === null) over.value = null;
    },
    drop: (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      over.value = null;
      upload([...(event.dataTransfer?.files ?? [])], binUnder(event));
    },
    paste: (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      // If the clipboard also has text, as from an office program, the text is pasted.
      if (files.length === 0 || event.clipboardData?.types.includes('text/plain') === true) return;
      event.preventDefault();
      upload(files);
    },
  });
  if (over.value === null) return null;
  const { bin } = over.value;
  return (
    <div class="drop">
      <div class="drop-inner">
        <Upload />
        <strong>{bin === undefined ? text.put.drop : text.put.dropInto(binName(bin))}</strong>
      </div>
    </div>
  );
}
