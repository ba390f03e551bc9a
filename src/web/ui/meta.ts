/** What the build wrote into the head of the page; empty where it has no such entry. */
export const metaContent = (name: 'version' | 'engine' | 'sw'): string =>
  document.querySelector<HTMLMetaElement>(`meta[name=${name}]`)?.content ?? '';
