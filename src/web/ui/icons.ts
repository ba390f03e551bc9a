import type { LucideIcon } from 'lucide-preact';

/** The icons in use. The package has no side effects, so a bundle holds only these. */
export {
  Check,
  CircleAlert,
  Copy,
  Info,
  EllipsisVertical,
  Eye,
  EyeOff,
  TriangleAlert,
  X,
  ArrowLeft,
  ChevronDown,
  Plus,
  Search,
  Menu as MenuIcon,
} from 'lucide-preact';
/** One of them, as a component. */
export type Icon = LucideIcon;
