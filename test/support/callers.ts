/**
 * Services as tests mostly call them: asked by the device that claimed the tenant last, and by the host that recovery
 * was signed for, unless the test names another.
 */
import { Passwords } from '../../src/server/devices/credentials.js';
import { Devices, type DevicesOptions } from '../../src/server/devices/devices.js';
import { Bootstrap, Recovery, type BootstrapOptions } from '../../src/server/devices/enrolment.js';
import { Bins, type BinsOptions } from '../../src/server/bins/bins.js';
import type {
  BinCreateBody,
  BinDeleteBody,
  BinPatchBody,
  BootstrapBody,
  DevicePatchBody,
  PasswordSetBody,
  RecoverBody,
} from '../../src/protocol/requests.js';

/** The device that asks; shared by the instances of a world. */
export interface Caller {
  id: string;
}

interface Called {
  readonly caller: Caller;
}

export class CalledBootstrap extends Bootstrap {
  constructor(private readonly own: BootstrapOptions & Called) {
    super(own);
  }

  override async claim(tenantId: string, body: BootstrapBody): ReturnType<Bootstrap['claim']> {
    const claimed = await super.claim(tenantId, body);
    this.own.caller.id = claimed.device.id;
    return claimed;
  }
}

export class CalledDevices extends Devices {
  constructor(private readonly own: DevicesOptions & Called) {
    super(own);
  }

  override patch(
    tenantId: string,
    id: string,
    body: DevicePatchBody,
    by: string = this.own.caller.id,
  ): ReturnType<Devices['patch']> {
    return super.patch(tenantId, id, body, by);
  }

  override revoke(tenantId: string, id: string, by: string = this.own.caller.id): ReturnType<Devices['revoke']> {
    return super.revoke(tenantId, id, by);
  }
}

export class CalledBins extends Bins {
  constructor(private readonly own: BinsOptions & Called) {
    super(own);
  }

  override create(tenantId: string, body: BinCreateBody, by: string = this.own.caller.id): ReturnType<Bins['create']> {
    return super.create(tenantId, body, by);
  }

  override patch(
    tenantId: string,
    id: string,
    body: BinPatchBody,
    by: string = this.own.caller.id,
  ): ReturnType<Bins['patch']> {
    return super.patch(tenantId, id, body, by);
  }

  override remove(
    tenantId: string,
    id: string,
    body: BinDeleteBody,
    by: string = this.own.caller.id,
  ): ReturnType<Bins['remove']> {
    return super.remove(tenantId, id, body, by);
  }
}

export class CalledPasswords extends Passwords {
  constructor(private readonly own: ConstructorParameters<typeof Passwords>[0] & Called) {
    super(own);
  }

  override set(tenantId: string, body: PasswordSetBody, by: string = this.own.caller.id): ReturnType<Passwords['set']> {
    return super.set(tenantId, body, by);
  }
}

export class CalledRecovery extends Recovery {
  override recover(tenantId: string, body: RecoverBody, dialled: string = body.host): ReturnType<Recovery['recover']> {
    return super.recover(tenantId, body, dialled);
  }
}
