/** The icons of devices, by the glyphs of the protocol. */
import { Globe, Laptop, Smartphone, Tablet, type LucideIcon } from 'lucide-preact';

const ICONS: ReadonlyMap<string, LucideIcon> = new Map([
  ['laptop', Laptop],
  ['phone', Smartphone],
  ['tablet', Tablet],
]);

export const deviceIcon = (glyph: string): LucideIcon => ICONS.get(glyph) ?? Globe;
