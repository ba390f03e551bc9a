/** Becoming a device (claim, join, recover), and pairing another one, as steps that screens show. One at a time. */
import { offerText } from '../../sdk/address.js';
import { prepareClaim, prepareRecovery, type NewDevice } from '../../sdk/enrol.js';
import { ApiError, isUndecided } from '../../sdk/errors.js';
import type { SavableIdentity } from '../../sdk/identity.js';
import { join, type JoinApproval, type PairingOffer } from '../../sdk/pairing.js';
import type { Platform } from '../../sdk/platform.js';
import { failureOf, type Enrolment as Step, type Offer } from '../link/messages.js';
import { Cell } from './cell.js';
import type { Device } from '../../sdk/device.js';

/** The attempt was cancelled or replaced: its outcome is ignored. */
class Ended extends Error {}

/** What an attempt may do while it is the current one. */
interface Attempt {
  /** Throws if the attempt was cancelled or replaced. */
  readonly show: (step: Step) => void;
  /** Asks the user for the account password; null: none given. */
  readonly password: () => Promise<string | null>;
  readonly signal: AbortSignal;
}

/** How a browser becomes a device. */
export type Method = 'claim' | 'join' | 'recover';

/** Undefined: the attempt waits for the user; `register` continues it. */
type Work = (attempt: Attempt) => Promise<SavableIdentity | undefined>;

/** Passwords tried in one attempt. */
const PASSWORDS_MAX = 5;

/** The enrolment of one browser. */
export class Enrolment {
  readonly step = new Cell<Step>({ step: 'idle' });
  private current = new AbortController();
  private method: Method = 'claim';
  /** Registers the generated keys; called again while the outcome is unknown, so that no second device is made. */
  private register: (() => Promise<SavableIdentity>) | undefined;
  private answer: (password: string | null) => void = () => undefined;
  /** Erases the keys of the phrase of the last recovery. */
  private forget: () => void = () => undefined;

  /** `enrolled` gets the new identity, and resolves when it is stored. */
  constructor(
    private readonly platform: Platform,
    private readonly serverUrl: string,
    private readonly enrolled: (identity: SavableIdentity, by: Method) => Promise<void>,
  ) {}

  /** Generates the keys and shows the twelve words; `retry` registers the keys. */
  claim(name: string, claimToken: string | null): void {
    if (!this.starts('claim')) return;
    this.begin(async ({ show }) => {
      const claim = await prepareClaim({ ...this.device(name), claimToken: claimToken ?? undefined });
      show({ step: 'phrase', words: claim.phrase.split(' ') });
      this.register = () => claim.register();
      return undefined;
    });
  }

  join(name: string, words: string): void {
    if (!this.starts('join')) return;
    this.begin(({ show, password, signal }) => {
      let digits = '';
      return join({
        ...{ ...this.device(name), words, signal },
        onDigits: (both) => {
          digits = both;
          show({ step: 'compare', digits });
        },
        password: async () => {
          const given = await password();
          show({ step: 'compare', digits });
          return given;
        },
      });
    });
  }

  recover(name: string, phrase: string): void {
    if (!this.starts('recover')) return;
    this.begin(async ({ password, signal }) => {
      const recovery = await prepareRecovery({ ...this.device(name), phrase, password });
      if (signal.aborted) {
        recovery.forget();
        return undefined;
      }
      this.forget();
      this.forget = () => recovery.forget();
      this.register = () => recovery.register();
      return recovery.register();
    });
  }

  /** Registers the generated keys: after the words of a claim were shown, or again after a failure. */
  retry(): void {
    const { register } = this;
    if (register === undefined) return;
    this.begin(() => register());
    this.register = register;
  }

  /** Answers the question for the account password; null: none is given. */
  password(password: string | null): void {
    this.answer(password);
  }

  cancel(): void {
    this.current.abort();
    this.answer(null);
    this.register = undefined;
    this.forget();
    this.forget = () => undefined;
    this.step.set({ step: 'idle' });
  }

  /** False while an attempt is under way: a form that is submitted twice must not use up its words for another key. */
  private starts(method: Method): boolean {
    if (!['idle', 'failed'].includes(this.step.value.step)) return false;
    this.method = method;
    return true;
  }

  private device(name: string): NewDevice {
    return { platform: this.platform, serverUrl: this.serverUrl, name, glyph: 'globe' };
  }

  /** `prompted`: number of password prompts so far. */
  private begin(work: Work, prompted = 0): void {
    this.current.abort();
    this.register = undefined;
    const { signal } = (this.current = new AbortController());
    let prompts = prompted;
    const show = (step: Step): void => {
      if (signal.aborted) throw new Ended();
      this.step.set(step);
    };
    const password = (): Promise<string | null> => {
      show({ step: 'password', wrong: prompts++ > 0 });
      return new Promise((resolve) => (this.answer = resolve));
    };
    show({ step: 'working' });
    let isRegistered = false;
    const run = async (): Promise<void> => {
      const identity = await work({ show, password, signal });
      if (identity === undefined) return;
      // Stored even if the attempt was cancelled meanwhile: the server knows this device, and after a claim it has no
      // other. If the keys cannot be stored, as on a full disk, only storing them is retried.
      isRegistered = true;
      this.register = () => Promise.resolve(identity);
      await this.enrolled(identity, this.method);
      this.cancel();
    };
    run().catch((error: unknown) => {
      if (signal.aborted || error instanceof Ended) return;
      // A mistyped password must not use up the words or the phrase.
      if (error instanceof ApiError && error.code === 'password_invalid' && prompts < PASSWORDS_MAX) {
        const { register } = this;
        this.begin(work, prompts);
        this.register = register;
        return;
      }
      const undecided = this.register !== undefined && (isRegistered || isUndecided(error));
      this.step.set({ step: 'failed', problem: failureOf(error), undecided });
    });
  }
}

/** The offers of one browser. */
export class Offers {
  readonly step = new Cell<Offer>({ step: 'idle' });
  private current: { offer?: PairingOffer; decide?: (same: boolean) => void; name?: string } = {};

  /** Makes an offer and shows its six words, until the tab that shows them has departed. */
  begin(device: Device, serverUrl: string, departed: AbortSignal): void {
    departed.throwIfAborted();
    this.cancel();
    const own: typeof this.current = {};
    this.current = own;
    departed.addEventListener('abort', () => this.current === own && this.cancel(), { once: true });
    const show = (step: Offer): void => {
      if (this.current === own) this.step.set(step);
    };
    const approve = ({ name, digits }: JoinApproval): Promise<boolean> => {
      own.name = name;
      show({ step: 'compare', name, digits });
      return new Promise((resolve) => (own.decide = resolve));
    };
    const run = async (): Promise<void> => {
      const offer = await device.offerPairing(approve);
      own.offer = offer;
      // Cancelled before the words arrived.
      if (this.current !== own) return offer.cancel();
      const { words, expiresAt } = offer;
      show({ step: 'words', words, link: offerText(serverUrl, words), expiresAt });
      show({ step: 'joined', id: await offer.joined, name: own.name ?? '' });
    };
    show({ step: 'working' });
    run().catch((error: unknown) => show({ step: 'failed', problem: failureOf(error) }));
  }

  /** The user has compared these digits, perhaps in a tab that does not show those of a later attempt yet. */
  answer({ same, digits }: { readonly same: boolean; readonly digits: string }): void {
    const { value } = this.step;
    if (value.step !== 'compare' || value.digits !== digits) return;
    this.current.decide?.(same);
    if (same) this.step.set({ step: 'working' });
  }

  cancel(): void {
    const { offer, decide } = this.current;
    this.current = {};
    decide?.(false);
    offer?.cancel();
    this.step.set({ step: 'idle' });
  }
}
