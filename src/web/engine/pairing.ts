/** Pairing another device, as steps that screens show. One offer at a time. */
import { offerText } from '../../sdk/address.js';
import type { Device } from '../../sdk/device.js';
import type { JoinApproval, PairingOffer } from '../../sdk/pairing.js';
import { failureOf, type Offer as Step } from '../link/messages.js';
import { Cell } from './cell.js';

/** The offers of one browser. */
export class Offers {
  readonly step = new Cell<Step>({ step: 'idle' });
  private current: { offer?: PairingOffer; decide?: (same: boolean) => void; name?: string } = {};

  /** Makes an offer and shows its six words. */
  begin(device: Device, serverUrl: string): void {
    this.cancel();
    const own: typeof this.current = {};
    this.current = own;
    const show = (step: Step): void => {
      if (this.current === own) this.step.set(step);
    };
    const approve = ({ name, glyph, digits }: JoinApproval): Promise<boolean> => {
      own.name = name;
      show({ step: 'compare', name, glyph, digits });
      return new Promise((resolve) => {
        own.decide = resolve;
      });
    };
    const ended = async (): Promise<void> => {
      const offer = await device.offerPairing(approve);
      own.offer = offer;
      // Cancelled before the words arrived.
      if (this.current !== own) return offer.cancel();
      const { words, expiresAt } = offer;
      show({ step: 'words', words, link: offerText(serverUrl, words), expiresAt });
      await offer.joined;
      show({ step: 'joined', name: own.name ?? '' });
    };
    show({ step: 'working' });
    ended().catch((error: unknown) => show({ step: 'failed', problem: failureOf(error) }));
  }

  /** The user has compared the digits. */
  answer(same: boolean): void {
    this.current.decide?.(same);
    if (same && this.step.value.step === 'compare') this.step.set({ step: 'working' });
  }

  cancel(): void {
    const { offer, decide } = this.current;
    this.current = {};
    decide?.(false);
    offer?.cancel();
    this.step.set({ step: 'idle' });
  }
}
