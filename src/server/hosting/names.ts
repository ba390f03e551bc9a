/** Host names of a hosted service: which belong to the apex, which to a tenant, which may be signed up. */

/** `<slug>.<base domain>`: what a tenant may be called. A label of DNS, at least three characters long. */
const SUBDOMAIN = /^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$/;

/**
 * Names that nobody gets: those that mail, certificates and browsers give a meaning (RFC 2142, RFC 6761), and those that
 * a stranger could pass off as the service's own.
 */
const RESERVED: ReadonlySet<string> = new Set(
  `abuse account accounts admin administrator api app apps assets auth autoconfig autodiscover billing blog blobs cdn
  checkout claim cloud console contact dashboard demo dev dns docs download email example ftp git health help home
  hostmaster http https imap info internal invalid invoice legal local localhost login mail mcp metrics mta-sts mx
  news noc noreply ns ns1 ns2 oauth official pair pay payment payments pop pop3 portal postmaster privacy prod
  production proxy public recover recovery register root sales secure security server service sftp signin signup
  smtp socket ssl staging static stats status store stripe support sync sysadmin system team terms test tls update
  upload usenet verify vpn webhook webmail webmaster websocket wpad ws www www1 www2`.split(/\s+/),
);

/** What a host name leads to. */
export type Destination = { readonly kind: 'apex' } | { readonly kind: 'tenant'; readonly slug: string };

/** A host name as it is compared: lower case, without the final dot of a fully qualified name (RFC 1034, 3.1). */
export function plainHost(host: string): string {
  const lower = host.toLowerCase();
  return lower.endsWith('.') ? lower.slice(0, -1) : lower;
}

/**
 * Where a host name (without port) belongs under `baseDomain` (lower case). Undefined for every other host, and for
 * labels below a tenant's: a certificate for one would be a certificate for nobody.
 */
export function destinationOf(host: string, baseDomain: string): Destination | undefined {
  const plain = plainHost(host);
  if (plain === baseDomain) return { kind: 'apex' };
  if (!plain.endsWith(`.${baseDomain}`)) return undefined;
  const slug = plain.slice(0, -baseDomain.length - 1);
  return SUBDOMAIN.test(slug) ? { kind: 'tenant', slug } : undefined;
}

/** Why a name cannot be signed up, in words; undefined where it can. Whether it is taken, only the database knows. */
export function refusalOf(subdomain: string): string | undefined {
  if (!SUBDOMAIN.test(subdomain)) {
    return 'must be 3 to 63 of the characters a-z, 0-9 and -, with a letter or digit at both ends';
  }
  // Internationalized names begin so (RFC 5890): they can look like any other.
  if (subdomain.slice(2, 4) === '--') return 'must not have hyphens in third and fourth place';
  return RESERVED.has(subdomain) ? 'is reserved' : undefined;
}
