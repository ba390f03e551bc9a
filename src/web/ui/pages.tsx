/** The pages beside the list, loaded after the first view. */
import type { JSX } from 'preact';
import { DevicesScreen } from './devices.js';
import { RevokedNotice } from './revoked.js';
import { SettingsScreen } from './settings.js';
import { TrustScreen } from './trust.js';

/** `revoked`: the notice above the list. */
export function Page({ page }: { readonly page: 'devices' | 'settings' | 'trust' | 'revoked' }): JSX.Element {
  switch (page) {
    case 'devices':
      return <DevicesScreen />;
    case 'settings':
      return <SettingsScreen />;
    case 'trust':
      return <TrustScreen />;
    case 'revoked':
      return <RevokedNotice />;
  }
}
