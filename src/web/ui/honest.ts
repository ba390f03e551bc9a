/**
 * Marks that turn the direction of what follows: a name may show another ending than it has. And controls, and halves of
 * characters, for which addresses cannot be built.
 */
const TURNING = /[\p{Cs}\u202a-\u202e\u2066-\u2069\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/gu;
/** Another's text without marks that make it look like another one. */
export const honest = (value: string): string => value.replace(TURNING, '\ufffd');
