/** A run from its first tenant to its report: all crews complete a phase before the next begins. */
import { systemClock } from '../protocol/clock.js';
import { asError } from '../protocol/error-code.js';
import { object, string } from '../sdk/reader.js';
import type { Release } from '../terminal/output.js';
import { usageError } from '../terminal/terminal.js';
import { removeTenant, testTenants } from './fleet.js';
import type { Crew, Phase, Progress } from './orders.js';
import { BOUNDS, sum, type Plan } from './plan.js';
import { keptOf, reportOf, Timeline, type Report } from './report.js';
import { withTarget } from './target.js';
import type { PartResult } from './worker.js';

const health = object({ version: string, commit: string });

/** Texts about what could not be removed, and their length: agents send them. As many as a run can have tenants. */
const LEFT_MAX = BOUNDS.tenants[1];
const LEFT_CHARS = 500;

/** The processes of all crews. */
export const processesOf = (crews: readonly Crew[]): number => sum(crews, ({ processes }) => processes);

/** A run under way. */
export class Coordinator {
  readonly timeline = new Timeline();
  private readonly results = new Map<number, PartResult>();
  private readonly lost = new Map<string, string>();
  /** Crews that did not report what they removed, and why. */
  private readonly unremoved = new Map<string, string>();
  /** The current phase. */
  phase: Phase = 'prepare';
  /** What could not be removed, and why. */
  left: readonly string[] = [];

  /** Receives the progress of each crew: pass it to all of them. */
  readonly onNews = (news: Progress): void => {
    if (news.news === 'tick') this.timeline.add(news.part, news.tick);
    else if (news.news === 'result')
      this.results.set(news.result.part, keptOf(news.result, this.options.plan.storms.length));
    else if (news.news === 'left') this.leave(news.left);
  };

  constructor(
    private readonly options: {
      readonly plan: Plan;
      readonly load: Release;
      /** For removing the tenants of lost processes; undefined: the run uses existing tenants, which it must not remove. */
      readonly adminToken: string | undefined;
      readonly signal: AbortSignal;
    },
  ) {}

  /**
   * Executes the run. Rejects if it cannot begin, and when interrupted; what was made is removed in either case, and
   * what could not be removed is in `left`. A crew that is lost later is in the report.
   */
  async run(crews: readonly Crew[]): Promise<Report> {
    const { plan, load, signal } = this.options;
    const at = systemClock.now();
    const server = await this.release();
    if ((await this.slugs()).length > 0)
      throw usageError(
        `tenants of a run ${plan.name} already exist`,
        'Use another --name, or remove them: service-load clean --name.',
      );
    // A signal that is aborted already calls no listener.
    signal.throwIfAborted();
    let removing = Promise.resolve();
    const interrupted = (): void => void (removing = this.performAll(crews, 'remove'));
    signal.addEventListener('abort', interrupted, { once: true });
    try {
      await this.prepare(crews);
      for (const phase of ['connect', 'write', 'finish'] as const) {
        signal.throwIfAborted();
        this.phase = phase;
        await this.performAll(crews, phase);
      }
      this.expectResults(crews);
    } finally {
      signal.removeEventListener('abort', interrupted);
      this.phase = 'remove';
      await removing;
      // Named anew by each crew, which tries it again.
      this.left = [];
      await this.performAll(crews, 'remove');
      await this.removeRest();
    }
    signal.throwIfAborted();
    const { timeline, left } = this;
    const results = [...this.results.values()];
    return reportOf({ plan, at, load, server, results, timeline, lostParts: [...this.lost.values()], left });
  }

  /** Orders `prepare`; the crews get consecutive shares. */
  private async prepare(crews: readonly Crew[]): Promise<void> {
    const { plan } = this.options;
    const parts = processesOf(crews);
    let part = 0;
    await Promise.all(
      crews.map((crew) => {
        const share = { part, parts };
        part += crew.processes;
        return crew.perform({ phase: 'prepare', plan, share });
      }),
    );
  }

  /** Every crew performs the phase; one that fails counts as lost, and what is left of it goes on. */
  private async performAll(crews: readonly Crew[], phase: Exclude<Phase, 'prepare'>): Promise<void> {
    await Promise.all(
      crews.map(async (crew) => {
        try {
          await crew.perform({ phase });
        } catch (error) {
          const { message } = asError(error);
          if (!this.lost.has(crew.name)) this.lost.set(crew.name, message);
          if (phase === 'remove') this.unremoved.set(crew.name, message);
        }
      }),
    );
  }

  /** A process without a result was not audited: that is no run of which nothing was lost. */
  private expectResults(crews: readonly Crew[]): void {
    const missing = processesOf(crews) - this.results.size;
    if (missing > 0 && this.lost.size === 0) this.lost.set('', `${missing} of its processes sent no result`);
  }

  /** Removes tenants whose process died or could not remove them; their names identify them as this run's. */
  private async removeRest(): Promise<void> {
    const { adminToken, plan } = this.options;
    // Without the token nobody can look.
    if (adminToken === undefined)
      return this.leave([...this.unremoved.values()].map((text) => `${plan.name}: ${text}`));
    if (this.lost.size === 0 && this.left.length === 0) return;
    try {
      await withTarget(plan.url, async (target) => {
        for (const slug of await this.slugs()) await removeTenant(target, slug, adminToken);
      });
      this.left = this.left.filter((text) => !text.startsWith(`${plan.name}-`));
    } catch (error) {
      // There is room for this one, whatever agents have reported.
      this.left = this.left.slice(0, LEFT_MAX - 1);
      this.leave([`${plan.name}-...: ${asError(error).message}`]);
    }
  }

  private leave(texts: readonly string[]): void {
    const more = texts.slice(0, LEFT_MAX - this.left.length).map((text) => text.slice(0, LEFT_CHARS));
    this.left = [...this.left, ...more];
  }

  /** The test tenants whose names begin with this run's. */
  private async slugs(): Promise<string[]> {
    const { adminToken, plan } = this.options;
    if (adminToken === undefined) return [];
    return withTarget(plan.url, (target) => testTenants(target, adminToken, `${plan.name}-`));
  }

  private async release(): Promise<Release | null> {
    const { plan } = this.options;
    try {
      const { body } = await withTarget(plan.url, (target) => target.send({ method: 'GET', path: '/api/health' }));
      return health(body, '');
    } catch {
      // Another server may not report its version.
      return null;
    }
  }
}
