/** True for a loopback host as in a URL, where http is as safe as https, and which no other machine reaches. */
export const isLocalHost = (host: string): boolean => /^(localhost|127\.[\d.]+|\[::1\]|.*\.localhost)$/.test(host);
