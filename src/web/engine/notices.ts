/** What a person should know of, until it is dismissed: changes that were refused, and what the server did wrong. */
import { failureOf, type Notice } from '../link/messages.js';
import { Cell } from './cell.js';

/** Older ones give way. */
const NOTICES_MAX = 100;

type How = 'overwrite' | 'copy';

/** The notices of an open device. */
export class Notices {
  readonly list = new Cell<readonly Notice[]>([]);
  /** Writes a refused change again. */
  private readonly again = new Map<string, (how: How) => Promise<unknown>>();

  add(
    kind: Notice['kind'],
    about: {
      readonly title?: string;
      readonly error?: unknown;
      readonly again?: ((how: How) => Promise<unknown>) | undefined;
    } = {},
  ): void {
    const id = crypto.randomUUID();
    const problem = about.error === undefined ? null : failureOf(about.error);
    if (about.again !== undefined) this.again.set(id, about.again);
    const notice = {
      id,
      kind,
      title: about.title ?? '',
      problem,
      at: Date.now(),
      canResend: about.again !== undefined,
    };
    // The same once more is no news.
    const others = this.list.value.filter(
      (known) => known.kind !== kind || known.title !== notice.title || known.problem?.code !== problem?.code,
    );
    const all = [notice, ...others];
    for (const gone of all.slice(NOTICES_MAX)) this.again.delete(gone.id);
    this.list.set(all.slice(0, NOTICES_MAX));
  }

  dismiss(id: string): void {
    this.again.delete(id);
    this.list.set(this.list.value.filter((notice) => notice.id !== id));
  }

  async resend(id: string, how: How): Promise<void> {
    const again = this.again.get(id);
    this.dismiss(id);
    await again?.(how);
  }
}
