/** Rules that no client can see from outside, and why: of whole sections, and of single rules. */
import type { Rule } from './rules.js';

const CLIENTS = "a rule for clients: the vectors and the client's own tests prove it";
const INSTANCES = 'needs several instances of the server, or its database, to be handled';
const DATABASE = 'needs the database to be taken away';
const CLOCK = "needs days to pass, or the server's clock";
const CONFIG = "needs the server's configuration to be known or changed";
const INSIDE = "speaks of the server's inside";

/** Section title to reason: for every rule of the section that has no case. */
export const SECTIONS_OUTSIDE: Readonly<Record<string, string>> = {
  'Several instances, one truth': INSTANCES,
  Configuration: CONFIG,
  Logs: "needs the server's log",
  Durability: 'needs server or database to be killed',
  Architecture: "speaks of this project's source",
  Dependencies: "speaks of this project's own packages",
  Packages: "speaks of this project's own packages",
  Cryptography: CLIENTS,
  'Item tags': CLIENTS,
  'Our clients': CLIENTS,
  'The local store': CLIENTS,
  "Live queries and the library's surface": CLIENTS,
  'Command line': CLIENTS,
  'The web app': "speaks of a page that another server need not have; this project's own tests prove it",
  Doctor: CLIENTS,
  Archive: CLIENTS,
  'Other programs': CLIENTS,
  'Secrets of a device in the terminal': CLIENTS,
  'Lying servers': CLIENTS,
  Reference: "speaks of this project's own documentation",
  'Object stores': 'needs the store of a hosted server',
  'Blobs on our clients': CLIENTS,
  'The companion: pairing': CLIENTS,
  'The companion: tools': CLIENTS,
  'Conformance kit': 'speaks of the kit itself',
  Hosting: 'needs multi mode and its domain',
  'Nightly jobs': CLOCK,
  Operator: INSTANCES,
  Metrics: CONFIG,
  Backup: "needs the server's database",
  Blobs: "needs the server's object store, its configuration or its clock; this project's own tests prove it",
  Deployment: "speaks of the project's own files",
  'Fair shares': "takes all that can be got of a server, and looks at its memory; this project's own tests prove it",
  Billing: 'needs multi mode and a payment provider',
  'Background work': INSIDE,
  Platforms: "speaks of the machines that this project's own tests run on",
};

/** Rule id to reason. */
export const RULES_OUTSIDE: Readonly<Record<string, string>> = {
  'ERR-13': 'needs a fault of the server',
  'ERR-14': DATABASE,
  'ERR-16': INSIDE,
  'ERR-17': 'needs a tenant that has not paid',
  'TOKEN-04': 'needs a second tenant',
  'TOKEN-05': CLOCK,
  'TOKEN-06': CLOCK,
  'TOKEN-08': CONFIG,
  'TOKEN-10': CONFIG,
  'TOKEN-12': INSTANCES,
  'TOKEN-25': CONFIG,
  'TOKEN-26': 'needs a second tenant',
  'TOKEN-27': CLOCK,
  'TOKEN-28': 'memory of the process, which nobody outside sees',
  'HTTP-09': CONFIG,
  'HTTP-11': CONFIG,
  'HTTP-16': "looks at the connection below HTTP; this project's own tests prove it",
  'HTTP-17': 'needs the proxies in front of the server',
  'HTTP-18': 'speaks of the HTTP library of this server',
  'HTTP-19': "a bound of this server's own",
  'HTTP-20': "asks every route of this server's table",
  'RETRY-12': 'a purge comes 30 days after the delete',
  'DEL-06': 'a purge comes 30 days after the delete',
  'DEL-09': 'a purge comes 30 days after the delete',
  'RATE-10': INSTANCES,
  'RATE-13': CONFIG,
  'RATE-15': "sends more than somebody else's server should be asked to take",
  'RATE-16': "reads more than somebody else's server should be asked for",
  'DEV-20': "needs many devices to be made; this project's own tests prove it",
  'PASS-15': 'an endpoint that another server need not have',
  'PASS-16': 'an endpoint that another server need not have',
  'BIN-18': 'needs the server to be killed in the middle of a call',
  'PAIR-23': INSTANCES,
  'PAIR-25': CLOCK,
  'DEV-15': INSIDE,
  'DEV-16': 'is noted in the background, and once a minute at most',
  'PASS-12': 'needs a second address',
  'STAT-02': DATABASE,
  'STAT-05': DATABASE,
  'WS-19': CLOCK,
  'WS-20': 'needs the server to be stopped',
  'WS-21': DATABASE,
  'WS-24': INSIDE,
  'REPLAY-07': INSIDE,
  'HEART-05': 'needs many minutes of many sockets, and says nothing exact',
  'EPOCH-04': INSTANCES,
  'EPOCH-06': 'needs server or database to be killed',
  'EPOCH-07': INSTANCES,
  'EPOCH-08': INSTANCES,
};

/** Why no case checks a rule; undefined where one should. */
export const outsideReason = (rule: Rule): string | undefined =>
  RULES_OUTSIDE[rule.id] ?? SECTIONS_OUTSIDE[rule.section];
