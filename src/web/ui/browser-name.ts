/** Recognizes browser and platform, for the default name of a device. */

/** What a browser reports about itself; browsers based on Chromium report more than the user agent. */
export interface BrowserSelf extends Pick<Navigator, 'userAgent' | 'maxTouchPoints'> {
  readonly userAgentData?: { readonly brands?: readonly { readonly brand: string }[]; readonly platform?: string };
}

/** The name of the first pattern that matches; empty: none does. */
const firstFit = (patterns: readonly (readonly [RegExp, string])[], text: string): string =>
  patterns.find(([pattern]) => pattern.test(text))?.[1] ?? '';

const BROWSERS = [
  [/Edg(e|A|iOS)?\/|Microsoft Edge/, 'Edge'],
  [/OPR\/|Opera/, 'Opera'],
  [/SamsungBrowser/, 'Samsung Internet'],
  [/Vivaldi/, 'Vivaldi'],
  [/Brave/, 'Brave'],
  [/Firefox\/|FxiOS\//, 'Firefox'],
  [/Chrome\/|CriOS\/|Google Chrome|Chromium/, 'Chrome'],
  [/Safari\//, 'Safari'],
] as const;

const PLATFORMS = [
  [/iPhone/, 'iPhone'],
  [/iPad/, 'iPad'],
  [/Android/, 'Android'],
  [/CrOS|Chrome OS/, 'Chromebook'],
  [/Windows/, 'Windows'],
  [/Mac/, 'Mac'],
  [/Linux|X11/, 'Linux'],
] as const;

/** Browser and platform, for a default device name. Empty: not known. */
export function browserOf({ userAgent, maxTouchPoints, userAgentData }: BrowserSelf): [string, string] {
  const brands = userAgentData?.brands?.map(({ brand }) => brand) ?? [];
  const browser = firstFit(BROWSERS, [...brands, userAgent].join(' '));
  const platform = firstFit(PLATFORMS, `${userAgentData?.platform ?? ''} ${userAgent}`);
  // An iPad reports itself as a Mac, but no Mac has a touch screen.
  return [browser, platform === 'Mac' && maxTouchPoints > 1 ? 'iPad' : platform];
}
