/** The icons of the picture beside the digits. */
import {
  Anchor,
  Bell,
  Fish,
  Heart,
  House,
  KeyRound,
  Moon,
  Star,
  TreePine,
  Umbrella,
  type LucideIcon,
} from 'lucide-preact';
import type { Thing } from './picture.js';

export const THING_ICONS: Readonly<Record<Thing, LucideIcon>> = {
  anchor: Anchor,
  bell: Bell,
  fish: Fish,
  heart: Heart,
  house: House,
  key: KeyRound,
  moon: Moon,
  star: Star,
  tree: TreePine,
  umbrella: Umbrella,
};
