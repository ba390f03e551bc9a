/** A QR code on the page. */
import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { qrPath } from './qr.js';

/** `label`: what the code leads to, for screen readers. */
export function QrCode({ value, label }: { readonly value: string; readonly label: string }): JSX.Element {
  const { size, path } = useMemo(() => qrPath(value), [value]);
  return (
    <svg class="qr" viewBox={`0 0 ${size} ${size}`} shape-rendering="crispEdges" role="img" aria-label={label}>
      <path d={path} />
    </svg>
  );
}
