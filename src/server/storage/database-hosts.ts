/**
 * Finds which of the servers named by a DATABASE_URL takes writes. The driver takes a single address, so each new
 * connection gets the one found last; if that fails, all servers are queried again, concurrently. If several take
 * writes, the one with the newest timeline is chosen: the others are former primaries.
 */
import pg from 'pg';
import { databaseAddress } from '../../protocol/database-url.js';
import { errorCode } from '../../protocol/error-code.js';
import { SingleFlight } from '../../protocol/single-flight.js';

/**
 * A server that does not answer within this time, ms, counts as unreachable. Less than opening a connection may take
 * (`CONNECT_TIMEOUT_MS`).
 */
const ANSWER_MS = 2_000;
/** How long to wait for other answers after the first server that takes writes, ms: one may have a newer timeline. */
const OTHERS_MS = 250;

interface HostAnswer {
  readonly url: string;
  readonly state: 'writable' | 'standby' | 'unreachable';
  /** 0 unless the server takes writes. */
  readonly timeline: number;
  /** The cluster's system identifier; empty if the server is unreachable. */
  readonly cluster: string;
  /** Why it is unreachable. */
  readonly cause?: unknown;
}

/** 57P03, cannot_connect_now: another server, or this one later, may accept the connection. */
const refusal = (message: string): Error => Object.assign(new Error(message), { code: '57P03' });

/** The error of a connection to a server that takes no writes. */
export const notWritable = (name: string): Error => refusal(`the database server ${name} takes no writes`);

/** `host:port`. */
const nameOf = (url: string): string => {
  const { hostname, port, searchParams } = new URL(url);
  return `${hostname === '' ? (searchParams.get('host') ?? '') : hostname}:${port === '' ? '5432' : port}`;
};

/** Queries one server, on its own connection. */
async function probe(url: string): Promise<HostAnswer> {
  const client = new pg.Client({
    connectionString: url,
    application_name: 'service-hosts',
    connectionTimeoutMillis: ANSWER_MS,
    query_timeout: ANSWER_MS,
  });
  client.on('error', () => undefined); // the statement's rejection reports it
  try {
    await client.connect();
    const { rows } = await client.query<Pick<HostAnswer, 'state' | 'cluster'> & { timeline: string }>(
      `SELECT CASE WHEN standby THEN 'standby' ELSE 'writable' END AS state, system_identifier::text AS cluster,
         CASE WHEN standby OR pg_is_in_recovery() THEN '0' ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline
       FROM pg_control_system(), (SELECT current_setting('transaction_read_only')::boolean AS standby) s`,
    );
    const [row] = rows;
    if (row === undefined) throw new Error('no answer');
    return { url, ...row, timeline: parseInt(row.timeline, 16) };
  } catch (cause) {
    return { url, state: 'unreachable', timeline: 0, cluster: '', cause };
  } finally {
    void client.end().catch(() => undefined); // a server that hangs is not waited for
  }
}

const stateText = ({ url, state, cause }: HostAnswer): string => {
  const name = nameOf(url);
  if (state !== 'unreachable') return `${name} ${state === 'standby' ? 'is a standby' : 'takes writes'}`;
  const code = errorCode(cause);
  return `${name} does not answer (${code === '' && cause instanceof Error ? cause.message : code})`;
};

/** The answers in one sentence, without credentials. */
export const describeHosts = (answers: readonly HostAnswer[]): string => answers.map(stateText).join(', ');

/** The servers of one URL, and which of them takes writes. */
export class DatabaseHosts {
  /** The server that took writes last, as long as no connection to it failed. */
  private chosen: string | undefined;
  /** The address chosen last. */
  current: string;
  /** The newest timeline seen of `cluster`. A server that reports an older one is a former primary. */
  private newest = { cluster: '', timeline: 0 };
  private readonly probing = new SingleFlight(() => this.probeAll());
  private readonly movedHooks = new Set<() => void>();

  constructor(
    readonly servers: readonly string[],
    /** See `DatabaseAddress`. */
    readonly writable: boolean,
  ) {
    this.current = servers[0] ?? '';
  }

  /** Resolves with the URL of the server that takes writes. Rejects (57P03) if none does. */
  async choose(): Promise<string> {
    if (this.servers.length === 1) return this.current;
    return this.chosen ?? this.probing.join();
  }

  /** Queries all servers, even if one is chosen: it may have been replaced without knowing it. */
  async refresh(): Promise<void> {
    if (this.servers.length > 1) await this.probing.fresh();
  }

  /** A connection to this server failed, was lost, or could not write. */
  failed(url: string): void {
    if (this.chosen === url) this.chosen = undefined;
  }

  /** `hook` is called when a different server takes the writes. Returns a function that unsubscribes. */
  onMoved(hook: () => void): () => void {
    this.movedHooks.add(hook);
    return () => this.movedHooks.delete(hook);
  }

  /** Queries all servers, and waits for each; chooses none. */
  answers(): Promise<readonly HostAnswer[]> {
    return Promise.all(this.servers.map(probe));
  }

  private async probeAll(): Promise<string> {
    const answers = await this.firstAnswers();
    const found = this.newestOf(answers);
    if (found === undefined) {
      this.chosen = undefined;
      throw refusal(`no server of the database takes writes: ${describeHosts(answers)}`);
    }
    this.newest = { cluster: found.cluster, timeline: found.timeline };
    const moved = this.current !== found.url;
    [this.chosen, this.current] = [found.url, found.url];
    if (moved) for (const hook of this.movedHooks) hook();
    return found.url;
  }

  /** All answers, or those received up to OTHERS_MS after the first server that takes writes: the others may hang. */
  private firstAnswers(): Promise<readonly HostAnswer[]> {
    const answers: HostAnswer[] = [];
    return new Promise((resolve) => {
      const add = (answer: HostAnswer): void => {
        answers.push(answer);
        if (answers.length === this.servers.length) resolve(answers);
        else if (answer.state === 'writable') setTimeout(() => resolve(answers), OTHERS_MS);
      };
      for (const url of this.servers) void probe(url).then(add);
    });
  }

  /** The server with the newest timeline that takes writes; of several the previous one. */
  private newestOf(answers: readonly HostAnswer[]): HostAnswer | undefined {
    const former = ({ cluster, timeline }: HostAnswer): boolean =>
      cluster === this.newest.cluster && timeline < this.newest.timeline;
    const rank = ({ url, timeline }: HostAnswer): number => timeline + (url === this.current ? 0.5 : 0);
    return answers
      .filter((answer) => answer.state === 'writable' && !former(answer))
      .sort((one, other) => rank(other) - rank(one))[0];
  }
}

/** One per URL in a process, so that all its connections agree. */
const known = new Map<string, DatabaseHosts>();

/** The servers that a URL names. A URL that cannot be parsed is kept as that of one server. */
export function hostsOf(url: string): DatabaseHosts {
  const before = known.get(url);
  if (before !== undefined) return before;
  const address = databaseAddress(url) ?? { servers: [url], writable: false };
  const made = new DatabaseHosts(address.servers, address.writable);
  // A single server needs no agreement; tests and commands use many such URLs.
  if (made.servers.length > 1) known.set(url, made);
  return made;
}
