/** Notifies actors and other instances of a durable change of a tenant. */

export interface ChangeNotifier {
  /** Reloads the tenant here and notifies the other instances. Rejects if the tenant could not be loaded. */
  readonly changed: (tenantId: string) => Promise<void>;
  /** Receives the error of `changed`. A failed notification costs time, never data. */
  readonly onFault: (error: unknown, tenantId: string) => void;
}

/**
 * Announces that a tenant changed. Never rejects: the change is durable, and an error would make the client believe
 * otherwise. If the reload failed, the next comparison of heads finds the change, at most 5 s later; and a token of an
 * unknown device makes the server reload the tenant anyway.
 */
export async function notifyChange(notifier: ChangeNotifier, tenantId: string): Promise<void> {
  try {
    await notifier.changed(tenantId);
  } catch (error) {
    notifier.onFault(error, tenantId);
  }
}
