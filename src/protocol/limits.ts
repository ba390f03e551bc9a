/** The one place for the service's name; every context string is built from it (contract 1). */
export const SERVICE_NAME = 'service';

/** Sizes are bytes, times are milliseconds, unless a name says otherwise (specification, Limits; contract 5, 9, 11). */
export const INLINE_CIPHERTEXT_MAX = 65_536;
export const BODY_MAX_ITEM = 256 * 1024;
export const BODY_MAX_BATCH = 1024 * 1024;
export const BODY_MAX = 64 * 1024;
/** A billing webhook, as it comes (contract 12). */
export const BODY_MAX_WEBHOOK = 1024 * 1024;
export const BATCH_WRITES_MAX = 100;

export const AEAD_TAG_BYTES = 16;
export const NONCE_BYTES = 24;
export const SIG_BYTES = 32;
export const KEY_BYTES = 32;
/** A secret box over a 32-byte key: 32 + 16. */
export const MASTER_WRAP_BYTES = 48;
export const SEALED_KEY_MIN = 32;
export const SEALED_KEY_MAX = 256;
export const SEALED_KEYS_PER_ITEM = 1_000;
/** The master key sealed to a device: a sealed box of 32 bytes is 80; room for other wraps (contract 9). */
export const WRAPPED_MASTER_KEY_MIN = 32;
export const WRAPPED_MASTER_KEY_MAX = 1_024;
/** Seconds are ten digits today; anything below 10^12 is not milliseconds (contract 5). */
export const TS_MIN = 1_000_000_000_000;

export const PAGE_DEFAULT_A = 500;
export const PAGE_DEFAULT_B = 200;
export const PAGE_MAX = 1_000;
export const PAGE_BYTES = 4 * 1024 * 1024;

export const BIN_META_MAX = 4 * 1024;
export const BINS_MAX = 1_000;
export const DEFAULT_BIN = 'inbox';
export const NAME_MAX = 64;
/** Characters of `claimToken` (BootstrapBody); a longer BOOTSTRAP_TOKEN could never be given. */
export const CLAIM_TOKEN_MAX = 256;
/** Characters of a token or ticket. The longest ids make 180; anything longer is refused unread. */
export const TOKEN_TEXT_MAX = 256;

export const PAIR_SESSION_MS = 5 * 60_000;
export const PAIR_HOLD_MS = 25_000;
export const PASSWORD_TICKET_MS = 10 * 60_000;
export const CHALLENGE_MS = 2 * 60_000;
export const WS_TICKET_MS = 60_000;

/** Lifetimes of blob URLs (specification, Limits). */
export const UPLOAD_URL_MS = 15 * 60_000;
export const DOWNLOAD_URL_MS = 5 * 60_000;

export const FRAME_MAX = 16 * 1024;
export const HELLO_TIMEOUT_MS = 30_000;
export const HELLO_INTERVAL_MS = 5_000;
export const SOCKETS_PER_DEVICE = 16;

/** Every instance compares heads with the database this often, so a lost notification costs at most this (contract 13). */
export const HEAD_COMPARE_MS = 5_000;
