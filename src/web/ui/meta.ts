/** A `<meta>` value that the build wrote into the page; empty if absent. */
export const metaContent = (name: 'version' | 'engine' | 'sw'): string =>
  document.querySelector<HTMLMetaElement>(`meta[name=${name}]`)?.content ?? '';
