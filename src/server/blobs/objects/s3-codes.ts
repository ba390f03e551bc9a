/** The codes with which S3 and its like refuse; Google's XML interface has the same. */
import type { FaultReason } from './fault.js';

/** What the codes of stores mean. A HEAD has none, so 403 alone is `denied`. */
const REASONS: Readonly<Record<string, FaultReason>> = {
  CredentialsProviderError: 'credentials',
  TokenProviderError: 'credentials',
  InvalidAccessKeyId: 'credentials',
  SignatureDoesNotMatch: 'credentials',
  InvalidToken: 'credentials',
  ExpiredToken: 'credentials',
  InvalidSecurity: 'credentials',
  Unauthorized: 'credentials',
  AccessDenied: 'denied',
  AllAccessDisabled: 'denied',
  NoSuchBucket: 'bucket',
  InvalidBucketName: 'bucket',
  PermanentRedirect: 'region',
  AuthorizationHeaderMalformed: 'region',
  IllegalLocationConstraintException: 'region',
  RequestTimeTooSkewed: 'clock',
  RequestExpired: 'clock',
};

/** A code of S3 as a reason; undefined: not one that is known here. */
export const reasonOfS3Code = (code: string): FaultReason | undefined =>
  Object.hasOwn(REASONS, code) ? REASONS[code] : undefined;
