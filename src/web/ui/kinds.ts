/** Icons and order of the ten kinds of items. */
import type { ContentType } from '../../protocol/item.js';
import {
  Code,
  File,
  Image,
  KeyRound,
  LinkIcon,
  MapPin,
  Music,
  Text,
  UserRound,
  Video,
  type LucideIcon,
} from 'lucide-preact';
import type { TextKind } from './detect.js';

export const KIND_ICONS: Readonly<Record<ContentType, LucideIcon>> = {
  password: KeyRound,
  link: LinkIcon,
  text: Text,
  code: Code,
  image: Image,
  file: File,
  audio: Music,
  video: Video,
  contact: UserRound,
  location: MapPin,
};

/** Kinds that text can become, the likeliest first. */
export const TEXT_KINDS: readonly TextKind[] = ['text', 'link', 'password', 'code', 'contact', 'location'];
