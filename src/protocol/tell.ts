/** What follows a durable change of a tenant. */

/** How a service tells of its changes. */
export interface ChangeTeller {
  /** Reads the tenant anew here and tells the other instances. Rejects when the tenant could not be read. */
  readonly changed: (tenantId: string) => Promise<void>;
  /** Told when that failed. Nothing is lost by it but time. */
  readonly onFault: (error: unknown, tenantId: string) => void;
}

/**
 * Tells everybody that the tenant changed. It never rejects: the change is durable, and an error here would have its
 * client believe that it is not. Where the reading failed, the next comparison of heads finds the change, 5 s later at
 * most; a token of a device that is not known yet has the tenant read anew by itself.
 */
export async function tellChange(teller: ChangeTeller, tenantId: string): Promise<void> {
  try {
    await teller.changed(tenantId);
  } catch (error) {
    teller.onFault(error, tenantId);
  }
}
