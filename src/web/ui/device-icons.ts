/** The icons of devices, by the glyphs of the protocol. */
import { Globe, Laptop, Smartphone, Tablet, type LucideIcon } from 'lucide-preact';

const ICONS: Readonly<Record<string, LucideIcon>> = { laptop: Laptop, phone: Smartphone, tablet: Tablet };

export const deviceIcon = (glyph: string): LucideIcon => ICONS[glyph] ?? Globe;
