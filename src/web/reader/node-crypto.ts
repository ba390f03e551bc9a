/** In place of Node's `crypto`, which kdbxweb requires and uses only where there is no WebCrypto. */
export {};
