/** The service's name. Every context string is built from it (reference, Cryptography). */
export const SERVICE_NAME = 'service';

// Sizes are in bytes and times in milliseconds unless stated otherwise (reference, Limits).

/** Ciphertext of an item, with its tag. */
export const INLINE_CIPHERTEXT_MAX = 65_536;
export const BODY_MAX_ITEM = 256 * 1024;
export const BODY_MAX_BATCH = 1024 * 1024;
/** Body of every other request with a token, and of claiming and recovery. */
export const BODY_MAX = 64 * 1024;
/** Body of every other request without a token: the memory that an unauthenticated client can occupy. */
export const BODY_MAX_UNAUTHENTICATED = 8 * 1024;
/** Body of a billing webhook (reference, Billing, Webhooks). */
export const BODY_MAX_WEBHOOK = 1024 * 1024;
/** How long a signed-up name stays reserved; until then its owner must claim it and, if it costs something, pay. */
export const UNCLAIMED_MS = 86_400_000;
export const BATCH_WRITES_MAX = 100;

/** Overhead of XChaCha20-Poly1305. */
export const AEAD_TAG_BYTES = 16;
/** Nonces of XChaCha20 and XSalsa20. */
export const NONCE_BYTES = 24;
/** Item and delete tags. */
export const SIG_BYTES = 32;
/** Symmetric keys and X25519 keys. */
export const KEY_BYTES = 32;
/** A secret box over a 32-byte key: 32 + 16. */
export const MASTER_WRAP_BYTES = 48;
/** An item key sealed to a device: a sealed box is 80; room for other wraps (reference, HTTP, Writing an item). */
export const SEALED_KEY_MIN = 32;
export const SEALED_KEY_MAX = 256;
/** Most devices that an item has keys for. */
export const SEALED_KEYS_PER_ITEM = 1_000;
/** The master key sealed to a device: a sealed box of 32 bytes is 80; room for other wraps (reference, Pairing). */
export const WRAPPED_MASTER_KEY_MIN = 32;
export const WRAPPED_MASTER_KEY_MAX = 1_024;
/** Least `ts`: anything below 10^12 is seconds, not milliseconds (reference, HTTP, Writing an item). */
export const TS_MIN = 1_000_000_000_000;
/** How far a `ts` may be ahead of the server's clock, ms: one far ahead could never be replaced. */
export const TS_AHEAD_MAX_MS = 24 * 3_600_000;

/** Items of a page without `limit`, in shape A and in shape B, and the largest `limit`. */
export const PAGE_DEFAULT_A = 500;
export const PAGE_DEFAULT_B = 200;
export const PAGE_MAX = 1_000;
/** A page ends before its content exceeds this. */
export const PAGE_BYTES = 4 * 1024 * 1024;
/** Largest reply of a page as JSON: base64 turns three bytes into four, and the last item may exceed `PAGE_BYTES`. */
export const PAGE_REPLY_MAX = 6 * 1024 * 1024;

/** Rate and burst of a device, in bytes a second: of bodies, and of replies. */
export const BODY_BYTES_PER_S = 4 * 1024 * 1024;
export const BODY_BYTES_BURST = 8 * 1024 * 1024;
export const REPLY_BYTES_PER_S = 16 * 1024 * 1024;
export const REPLY_BYTES_BURST = 32 * 1024 * 1024;

export const BIN_META_MAX = 4 * 1024;
export const BINS_MAX = 1_000;
/** Revoked devices in the list of devices: the latest. */
export const REVOKED_LISTED_MAX = 1_000;
/** Deleted bins of a tenant that stay stored: sockets are told of them, and clients that are further behind read the list. */
export const DELETED_BINS_MAX = 100;
/** The bin that every tenant has and that cannot be deleted. */
export const DEFAULT_BIN = 'inbox';
/** Characters of the name of a device or a bin. */
export const NAME_MAX = 64;
/** Characters of a bin's emoji, with its modifiers. */
export const EMOJI_MAX = 16;
/** Words of a pairing code, and of a recovery phrase. */
export const PAIR_WORDS = 6;
export const PHRASE_WORDS = 12;
/** Characters of `claimToken` (BootstrapBody), and so of BOOTSTRAP_TOKEN. */
export const CLAIM_TOKEN_MAX = 256;
/** Characters of a token or ticket. The longest has 180; anything over the limit is refused unparsed. */
export const TOKEN_TEXT_MAX = 256;

/** Lifetime of a pairing session, and how long a call waits in it before the reply `pending`. */
export const PAIR_SESSION_MS = 5 * 60_000;
export const PAIR_HOLD_MS = 25_000;
/** Lifetime of a password ticket. */
export const PASSWORD_TICKET_MS = 10 * 60_000;
/** Lifetime of a challenge of re-authentication or recovery. */
export const CHALLENGE_MS = 2 * 60_000;
/** Lifetime of a socket ticket. */
export const WS_TICKET_MS = 60_000;

/** Lifetimes of blob URLs (reference, Blobs). */
export const UPLOAD_URL_MS = 15 * 60_000;
export const DOWNLOAD_URL_MS = 5 * 60_000;
/** An upload that is not continued for this long is abandoned. */
export const UPLOAD_PAUSE_MS = 24 * 3_600_000;
/** How long after its start an upload may be continued: Google's sessions end then. */
export const UPLOAD_LIFE_MS = 7 * 24 * 3_600_000;
/** Least size of a part of an upload: the minimum of S3, and a multiple of Google's 256 KiB. */
export const UPLOAD_PART_BYTES = 5 * 1024 * 1024;
/** Most parts of an upload, the limit of S3: a larger upload gets larger parts. */
export const UPLOAD_PARTS_MAX = 10_000;
/** Most parts in one reply. */
export const UPLOAD_PARTS_AT_ONCE = 16;

/** Largest head of a request, bytes: request line and headers. */
export const HEAD_MAX = 8 * 1024;

/** Largest frame of a client. */
export const FRAME_MAX = 16 * 1024;
/** From the upgrade to `hello`. */
export const HELLO_TIMEOUT_MS = 30_000;
/** Minimum time between two `hello` of a socket. */
export const HELLO_INTERVAL_MS = 5_000;
/** Concurrent sockets of a device. */
export const SOCKETS_PER_DEVICE = 16;
/** Limits of client frames on one socket: rate, burst, and bytes a second. */
export const FRAMES_PER_S = 20;
export const FRAME_BURST = 60;
export const FRAME_BYTES_PER_S = 256 * 1024;
/** Size from which a client's frame counts as large. The SDK sends none of this size. */
export const LARGE_FRAME_MIN = 1024;
/** Bytes of large frames that the process parses each second. */
export const LARGE_FRAME_BYTES_PER_S = 4 * 1024 * 1024;
/** How long a device whose socket exceeded these limits cannot open a new one. */
export const FRAMES_PENALTY_MS = 10_000;
/** Unsent bytes of all sockets of the process. */
export const UNSENT_MAX = 128 * 1024 * 1024;
/** Unsent bytes of one socket; more than a page of a replay or a commit leaves unsent. */
export const SOCKET_UNSENT_MAX = 2 * 1024 * 1024;

/**
 * Maximum delay, ms, of a change whose notification was lost: by then an instance has noticed the loss and compared
 * heads. It takes longer if the machine or the database is overloaded (rules INST-45, INST-50).
 */
export const HEAD_COMPARE_MS = 5_000;
